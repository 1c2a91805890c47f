"""Airflow's settings as environment variables: LocalExecutor, its own database, nothing beyond loopback."""

from cdc_pipeline.launcher.place import Place

ADMINISTRATOR = "admin"
LONGEST_IDLE_TRANSACTION = "30s"
"""What a killed scheduler's orphans keep open, and with it the lock without which no other one schedules anything."""
UNCHANGED_FILES_AGAIN = "600"
"""Seconds until DAG files that nobody touched are parsed again, for what pipeline.yml says now."""


def passwords_file(home: str) -> str:
    """User -> password, as JSON."""
    return f"{home}/airflow/passwords.json"


def airflow_environment(place: Place) -> dict[str, str]:
    """There is one user, who may do everything. Airflow makes up a password where `passwords_file` has none."""
    database = place.endpoints.airflow_database_url.removeprefix("postgresql://")
    url = place.endpoints.airflow_url
    return {
        "AIRFLOW_HOME": f"{place.home}/airflow",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{place.project}/dags",
        "AIRFLOW__CORE__PLUGINS_FOLDER": f"{place.project}/plugins",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMINISTRATOR}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords_file(place.home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}"
        f"?options=-cidle_in_transaction_session_timeout={LONGEST_IDLE_TRANSACTION}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://{database}",
        "AIRFLOW__API__HOST": place.listen,
        "AIRFLOW__API__PORT": str(place.ports["airflow"]),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": place.jwt_secret,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": UNCHANGED_FILES_AGAIN,
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
