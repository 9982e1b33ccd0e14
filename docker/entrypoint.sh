#!/bin/sh
# The role of a container is its command. Without one it says so and starts nothing.
set -eu

if [ "$#" -eq 0 ]; then
    cat >&2 <<'TEXT'
This image starts nothing by itself. Say what it shall be, as the command of the container:

  worker TICKET --state-dir /state --listen /ip4/0.0.0.0/tcp/7702
                        join a run with this machine (TICKET: the line that begins with hocket1:)
  coordinator /run-folder/run.toml --state-dir /state --ticket-to /ticket/ticket.txt
                        hold a run
  status TICKET         where a run stands
  --help                everything else

docs/docker.md has whole commands.
TEXT
    exit 2
fi

exec hocket "$@"
