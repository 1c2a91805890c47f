"""Airflow's settings as environment variables: LocalExecutor, a database of its own, only loopback."""

from cdc_pipeline.launcher.deployment import TASK_SLOTS_VARIABLE, Deployment
from cdc_pipeline.settings.installation.endpoints import WITHOUT_TLS

ADMINISTRATOR = "admin"
LONGEST_IDLE_TRANSACTION = "30s"
"""PostgreSQL ends transactions that are idle for longer. A killed scheduler's orphans keep one open, with a lock that
every other scheduler needs."""
SECONDS_BETWEEN_PARSINGS = "600"
"""Seconds after which unchanged DAG files are parsed again, to follow pipeline.yml."""


def passwords_file(home: str) -> str:
    """User -> password, as JSON."""
    return f"{home}/airflow/passwords.json"


def airflow_environment(deployment: Deployment) -> dict[str, str]:
    """There is one user, an administrator. Airflow generates a password if `passwords_file` has none."""
    database = deployment.endpoints.airflow_database_url.removeprefix("postgresql://")
    url = deployment.endpoints.airflow_url
    return {
        "AIRFLOW_HOME": f"{deployment.home}/airflow",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        TASK_SLOTS_VARIABLE: deployment.task_slots,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{deployment.project}/dags",
        "AIRFLOW__CORE__PLUGINS_FOLDER": f"{deployment.project}/plugins",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__MAX_MAP_LENGTH": "10000",  # a run of cdc_maintenance has a task for each table
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMINISTRATOR}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords_file(deployment.home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}"
        f"?{WITHOUT_TLS}&options=-cidle_in_transaction_session_timeout={LONGEST_IDLE_TRANSACTION}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://{database}?ssl=disable",
        "AIRFLOW__API__HOST": deployment.listen,
        "AIRFLOW__API__PORT": str(deployment.ports["airflow"]),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": deployment.jwt_secret,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": SECONDS_BETWEEN_PARSINGS,
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__TRIGGERER__CAPACITY": "10000",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "CDC_AIRFLOW_IS_EMBEDDED": "true",
    }
