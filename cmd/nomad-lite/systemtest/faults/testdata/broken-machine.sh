#!/bin/sh
# Makes a machine on which something is wrong, or repairs it:
#   broken-machine.sh CONDITION DIR           starts an agent in the empty directory DIR, and breaks something
#   broken-machine.sh CONDITION DIR repair    repairs it
#   broken-machine.sh CONDITION DIR end       ends the agent and its tasks, and removes what is outside of DIR
# Needs root and nomad-lite in PATH. The agent has the socket DIR/state/nomad.sock and the page http://127.0.0.1:$PORT (4646).
set -eu
condition=$1
cd "$2"
action=${3:-break}
export NOMAD_ADDR="unix://$PWD/state/nomad.sock"
pids_cgroup=/sys/fs/cgroup/pids
[ -d $pids_cgroup ] || pids_cgroup=/sys/fs/cgroup
pids_cgroup=$pids_cgroup/broken-machine-$(stat -c %i .)

start_agent() {
  # shellcheck disable=SC2086
  nomad-lite agent -config agent.hcl -data-dir state ${agent_flags:-} "$@" >>agent.log 2>&1 &
  echo $! >agent.pid
  i=0
  until nomad-lite node status -self 2>/dev/null | grep -q 'Status *= ready'; do
    i=$((i + 1))
    [ $i -lt 300 ] && kill -0 "$(cat agent.pid)" || { cat agent.log >&2; exit 1; }
    sleep 0.1
  done
}

kill_agent() { kill -9 "$(cat agent.pid)"; while kill -0 "$(cat agent.pid)" 2>/dev/null; do sleep 0.1; done; }

keeper() { pgrep -P "$(cat agent.pid)" -f '^nomad-lite keeper'; }

start_engine() {
  podman --root "$PWD/containers" --runroot "$PWD/containers.run" --tmpdir "$PWD/containers.tmp" --storage-driver vfs --cgroup-manager cgroupfs \
    system service --time 0 "unix://$PWD/engine.sock" >>engine.log 2>&1 &
  echo $! >engine.pid
  until [ -S engine.sock ]; do sleep 0.1; done
}

run_job() { # count script
  cat >job.nomad.hcl <<EOF
job "web" {
  group "web" {
    count = $1
    ephemeral_disk {
      size = 10
    }
    task "web" {
      driver = "${driver:-raw_exec}"
      config {
        command = "/bin/sh"
        args    = ["-c", "$2"]
      }
      logs {
        max_files     = 1
        max_file_size = 5
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
EOF
  nomad-lite job run -detach job.nomad.hcl
}

await_job() { # running allocations
  i=0
  until [ "$(nomad-lite job allocs -t '{{range .}}{{println .ClientStatus}}{{end}}' web | grep -c running)" = "$1" ]; do
    i=$((i + 1))
    [ $i -lt 300 ] || { nomad-lite job status web >&2; exit 1; }
    sleep 0.1
  done
}

# make_certificate NAME FROM TO: times as date understands them
make_certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out request.pem -subj /CN=localhost 2>/dev/null
  : >index.txt
  cat >ca.cnf <<EOF
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
default_md = sha256
policy = any
rand_serial = yes
[any]
commonName = supplied
EOF
  openssl ca -batch -config ca.cnf -selfsign -in request.pem -keyfile key.pem -out "$1" -notext \
    -startdate "$(date -u -d "$2" +%y%m%d%H%M%SZ)" -enddate "$(date -u -d "$3" +%y%m%d%H%M%SZ)" 2>/dev/null
}

case $action in
break)
  mkdir -p state
  cat >agent.hcl <<EOF
bind_addr = "127.0.0.1"
ports {
  http = ${PORT:-4646}
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
EOF
  ;;
end)
  nomad-lite agent stop -all state >/dev/null
  umount -l state/alloc 2>/dev/null || true # an agent leaves it mounted if one of its processes is still exiting
  case $condition in
  DiskFull | NoInodes | OutputLost) umount -l state ;;
  DriverUnhealthy) kill "$(cat engine.pid)" ;;
  esac
  if [ -d "$pids_cgroup" ]; then
    while xargs -r kill -9 <"$pids_cgroup/cgroup.procs" 2>/dev/null && ! rmdir "$pids_cgroup" 2>/dev/null; do sleep 0.1; done
  fi
  exit 0
  ;;
esac

case $condition-$action in
DiskFull-break)
  mount -t tmpfs -o size=64m,mode=711 tmpfs state
  start_agent
  dd if=/dev/zero of=state/backup.tar bs=1M 2>/dev/null || true
  ;;
DiskFull-repair) rm state/backup.tar ;;

NoInodes-break)
  mount -t tmpfs -o size=64m,nr_inodes=3000,mode=711 tmpfs state
  start_agent
  mkdir state/sessions
  (cd state/sessions && i=0 && while : >$i; do i=$((i + 1)); done) 2>/dev/null || true
  ;;
NoInodes-repair) rm -r state/sessions ;;

OutputLost-break)
  mount -t tmpfs -o size=64m,mode=711 tmpfs state
  start_agent
  run_job 1 'while :; do head -c 100000 /dev/urandom | base64; sleep 0.2; done'
  await_job 1
  dd if=/dev/zero of=state/backup.tar bs=4k 2>/dev/null || true
  ;;
OutputLost-repair) rm state/backup.tar ;;

RecordsDamaged-break)
  start_agent
  run_job 2 'sleep 100000'
  await_job 2
  kill_agent
  truncate -s $(($(stat -c %s state/state.db) * 47 / 100)) state/state.db
  start_agent
  ;;
RecordsDamaged-repair) rm state/state.db.damaged-* ;;

UnknownTasks-break)
  start_agent
  run_job 1 'sleep 100000'
  await_job 1
  kill_agent
  rm state/state.db
  start_agent
  ;;
UnknownTasks-repair)
  kill -INT "$(cat agent.pid)"
  while kill -0 "$(cat agent.pid)" 2>/dev/null; do sleep 0.1; done
  start_agent -end-unknown
  ;;

PluginDown-break)
  mkdir plugins
  printf '#!/bin/sh\n[ -e %s/broken ] && { echo "no licence for this machine" >&2; exit 3; }\nexec nomad-lite plugin serve raw_exec\n' "$PWD" >plugins/raw_exec
  chmod 755 plugins/raw_exec
  echo "plugin_dir = \"$PWD/plugins\"" >>agent.hcl
  start_agent
  run_job 1 'sleep 100000'
  await_job 1
  touch broken
  kill -9 "$(pgrep -P "$(keeper)" -f 'nomad-lite plugin serve raw_exec')"
  ;;
PluginDown-repair) rm broken && nomad-lite plugin restart raw_exec ;;

DescriptorsExhausted-break)
  ulimit -n 100
  start_agent
  run_job 20 'sleep 100000'
  await_job 6
  ;;
DescriptorsExhausted-repair) nomad-lite job stop -detach web >/dev/null ;;

ProcessesExhausted-break)
  mkdir "$pids_cgroup"
  echo $$ >"$pids_cgroup/cgroup.procs"
  start_agent
  run_job 2 'sleep 100000'
  await_job 2
  i=0
  while [ $i -lt 500 ]; do # a limit like that of a service of systemd, most of which is in use
    sleep 100000 >/dev/null 2>&1 &
    i=$((i + 1))
  done
  echo $(($(cat "$pids_cgroup/pids.current") + 2)) >"$pids_cgroup/pids.max"
  echo $$ >"${pids_cgroup%/*}/cgroup.procs"
  ;;
ProcessesExhausted-repair) echo max >"$pids_cgroup/pids.max" ;;

StateNotWritten-break)
  start_agent
  mv state/state.db state.db
  cp state.db state/state.db # as the restore of a backup would
  nomad-lite namespace apply other >/dev/null 2>&1 || true
  ;;
StateNotWritten-repair) mv state.db state/state.db ;;

DriverUnhealthy-break)
  start_engine
  cat >>agent.hcl <<EOF
plugin "docker" {
  config {
    endpoint = "unix://$PWD/engine.sock"
  }
}
EOF
  start_agent
  kill "$(cat engine.pid)"
  ;;
DriverUnhealthy-repair) start_engine ;;

KeeperReplaced-break)
  start_agent
  kill -9 "$(keeper)"
  ;;

CertificateExpiring-break)
  make_certificate cert.pem '60 days ago' '6 days'
  printf 'tls {\n http = true\n cert_file = "%s/cert.pem"\n key_file = "%s/key.pem"\n}\n' "$PWD" "$PWD" >>agent.hcl
  start_agent
  ;;
CertificateExpiring-repair)
  make_certificate cert.pem '1 day ago' '90 days'
  kill -HUP "$(cat agent.pid)"
  ;;
CertificateExpired-break)
  make_certificate cert.pem '60 days ago' '1 hour ago'
  printf 'tls {\n http = true\n cert_file = "%s/cert.pem"\n key_file = "%s/key.pem"\n}\n' "$PWD" "$PWD" >>agent.hcl
  start_agent
  ;;
CertificateExpired-repair)
  make_certificate cert.pem '1 day ago' '90 days'
  kill -HUP "$(cat agent.pid)"
  ;;

*)
  echo "broken-machine.sh: no such condition or action: $condition $action" >&2
  exit 2
  ;;
esac
