everything >/tmp/before
install
# What a pod's monitor is called.
cp /bin/sleep /tmp/gantry-monitor
/tmp/gantry-monitor 1000 &
monitor=$!
if dpkg --remove gantry >/tmp/said 2>&1; then
    fail "removed under a running pod"
fi
grep -q '1 pods run' /tmp/said || fail "$(cat /tmp/said)"
# dpkg remembers what was wanted.
equal "state" "deinstall ok installed" "$(dpkg-query --show --showformat '${Status}' gantry)"
[ -L /opt/cni/bin/bridge ] || fail "it began all the same"
# An upgrade does no harm to it.
install
kill -0 "$monitor" || fail "the upgrade ended a pod"
kill "$monitor"
wait "$monitor" 2>/dev/null || true
purge
unchanged /tmp/before
