"""How many random logs a test draws: here, and nowhere else. `make fuzz` takes the profile `fuzz`."""

from hypothesis import HealthCheck, settings

LOGS = {"fuzz": 100_000}
LOGS_IN_MAKE_TEST = 3_000


def logs(share: float) -> settings:
    """Settings of a test that draws this share of all random logs."""
    total = LOGS.get(settings.get_current_profile_name(), LOGS_IN_MAKE_TEST)
    return settings(max_examples=round(total * share), suppress_health_check=[HealthCheck.too_slow])
