"""A process that races others for objects: `cdc check-store` starts two of them.

Gets `{"url", "server", "keys", "writer"}` as one line of JSON, says `ready`, waits for another line, puts every key and
says as JSON which ones it won.
"""

import json
import sys

from cdc_pipeline.errors import ObjectExists
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings import ObjectStoreSettings
from cdc_pipeline.wiring import open_object_store_at


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    objects = open_object_store_at(asked["url"], ObjectStoreSettings(**asked["server"]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps([_wins(objects, key, asked["writer"].encode()) for key in asked["keys"]]), flush=True)


def _wins(objects: ObjectStore, key: str, content: bytes) -> bool:
    try:
        objects.put_if_absent(key, content)
    except ObjectExists:
        return False
    return True


if __name__ == "__main__":
    main()
