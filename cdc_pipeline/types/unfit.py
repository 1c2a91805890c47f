"""The exception for a value that its type cannot hold."""


class Unfit(ValueError):
    pass
