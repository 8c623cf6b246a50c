"""The committed gRPC messages are the compiler's output for admin.proto."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = "rpc/proto/admin.proto"


def test_grpc_messages_committed_are_current(tmp_path):
    """`make gen` would change nothing."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    subprocess.run(command, check=True, cwd=ROOT)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.name for path in made] == ["admin_pb2.py", "admin_pb2.pyi"]
    for path in made:
        committed = ROOT / path.relative_to(tmp_path)
        assert path.read_text() == committed.read_text(), committed.name
