"""The same program over HTTP: only the backend changes. Start `branchpoint serve smollm2` first."""

import sys

import branchpoint as bp
from examples import extraction


def main(url: str) -> list[extraction.Event]:
    with bp.RuntimeEndpoint(url) as endpoint:
        return extraction.main(endpoint)


if __name__ == "__main__":
    for event in main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"):
        print(event)
