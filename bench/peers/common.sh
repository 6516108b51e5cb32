# Parts that the scripts `peer` share: they source this file after `set -euo pipefail`.
# DIR, the second argument of each, has programs, logs and data; `data` below it is emptied at each start.
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
fail() { echo "peer: $*" >&2; exit 1; }
[ $# -ge 2 ] || usage
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2

require() { command -v "$1" > /dev/null || fail "$1 is missing: install $2"; } # PROGRAM WHAT

listening() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

wait_for_port() { # PORT PID LOG
  for _ in $(seq 240); do
    listening "$1" && return 0
    kill -0 "$2" 2> /dev/null || fail "a process ended before it listened on port $1: see $3"
    sleep 0.25
  done
  fail "nothing listens on port $1: see $3"
}

launch() { # LOG COMMAND...: in the background, living on when this script ends
  setsid nohup "${@:2}" > "$1" 2>&1 < /dev/null &
  started=$!
  echo "$started" >> "$dir/pids"
}

ours() { tr '\0' ' ' 2> /dev/null < "/proc/$1/cmdline" | grep -qF "$dir"; }  # a process id may belong to a stranger by now

stop() {
  [ -f "$dir/pids" ] || return 0
  local pid signal
  for signal in TERM KILL; do
    for pid in $(tac "$dir/pids"); do ours "$pid" && kill -s "$signal" "$pid" 2> /dev/null || true; done
    for _ in $(seq 80); do
      local left=0
      for pid in $(cat "$dir/pids"); do if ours "$pid"; then left=1; fi; done
      [ "$left" = 0 ] && break 2
      sleep 0.25
    done
  done
  rm -f "$dir/pids"
}

begin() { # VARIABLE PORT...: end what an earlier start left, check disk and ports, and remove the data
  case $(stat -f -c %T "$dir") in
    tmpfs | ramfs) fail "$dir is in memory: name a directory on a disk" ;;
  esac
  stop
  local each
  for each in "${@:2}"; do
    if listening "$each"; then fail "port $each is in use: set $1"; fi
  done
  rm -rf "$dir/data"
}

stop_unless_started() { trap '[ $? = 0 ] || stop' EXIT; trap 'exit 130' INT TERM; }

build() { # PACKAGE...: from the Go module in load/, with the versions that it pins
  require go "Go 1.26 or newer"
  go -C "$here/../load" build -o "$dir/" "$@" >&2
}

add_load() { # SYSTEM ADDRESS BYTES STREAMS WINDOW SECONDS [RATE]
  [ $# -ge 6 ] || usage
  exec "$dir/tallybook-peers" "$@" 2>> "$dir/load.log"
}
