"""What is raised for a single value that its type cannot hold."""


class Unfit(ValueError):
    pass
