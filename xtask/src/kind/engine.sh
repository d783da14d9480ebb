# A dockerd of its own, in namespaces and a cgroup subtree of its own (`cell`), until a line comes through $1/end.
# $1: the engine's folder, $2: a program that is its OCI runtime by the word after it
set -eu
folder=$1 runtime=$2
export PATH="$PATH:/usr/sbin:/sbin"
resolver=$(cat /etc/resolv.conf)
mount -t tmpfs none /run
# dockerd and its containerd write there without being asked.
for target in /etc /opt; do
    mkdir -p "/run/upper$target" "/run/work$target"
    mount -t overlay overlay -o "lowerdir=$target,upperdir=/run/upper$target,workdir=/run/work$target" "$target"
done
printf '%s\n' "$resolver" >/etc/resolv.conf
# Kernel settings of the whole machine that a kubelet changes, also in a container.
settings="vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
kernel/keys/root_maxbytes"
for setting in $settings; do
    mkdir -p "/run/settings/${setting%/*}"
    cat "/proc/sys/$setting" >"/run/settings/$setting"
done
cat >"$folder/daemon.json" <<JSON
{
  "data-root": "$folder/docker",
  "exec-root": "/run/docker",
  "pidfile": "/run/docker.pid",
  "hosts": ["unix:///run/docker.sock"],
  "storage-driver": "overlay2",
  "cgroup-parent": "/gantry-kind",
  "ip6tables": false,
  "default-runtime": "clamped",
  "runtimes": { "clamped": { "path": "$runtime", "runtimeArgs": ["kind-oci-runtime"] } }
}
JSON
dockerd --config-file "$folder/daemon.json" >"$folder/dockerd.log" 2>&1 &
engine=$!
tries=0
until docker info >/dev/null 2>&1; do
    kill -0 "$engine" 2>/dev/null || { tail -n 20 "$folder/dockerd.log"; exit 1; }
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || { echo "dockerd does not answer"; exit 1; }
    sleep 0.1
done
: >"$folder/answers"
read -r _ <"$folder/end"

containers=$(docker ps --all --quiet)
[ -z "$containers" ] || docker rm --force --volumes $containers >/dev/null
kill "$engine"
wait "$engine" || true
for setting in $settings; do
    cat "/run/settings/$setting" >"/proc/sys/$setting"
done
# The engine's own parents; a cgroup with a process in it stays, and is told.
for root in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do
    [ ! -d "$root/gantry-kind" ] || find "$root/gantry-kind" -depth -type d -exec rmdir {} +
done
