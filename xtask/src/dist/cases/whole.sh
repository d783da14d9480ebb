everything >/tmp/before
install

equal "dpkg's own look" "" "$(dpkg --verify gantry)"
for program in /usr/bin/gantry /usr/bin/kubelet /opt/cni/bin/bridge; do
    equal "$program" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing "$program")"
done
version=$(dpkg-query --show --showformat '${Version}' gantry)
equal "gantry --version" "gantry $version" "$(gantry --version)"
case "$(kubelet --version)" in
"Kubernetes v1."*"+gantry.$version") ;;
*) fail "kubelet --version: $(kubelet --version)" ;;
esac
for plugin in bridge host-local loopback portmap ptp; do
    said=$(CNI_COMMAND=VERSION "/opt/cni/bin/$plugin" <<-'CONFIG'
	{"cniVersion": "1.1.0"}
	CONFIG
    )
    case "$said" in *'"supportedVersions"'*) ;; *) fail "$plugin: $said" ;; esac
done
# Beside gantry, wherever the link to it is.
gantry doctor >/tmp/doctor 2>&1 || true
! grep -q 'gantry-monitor.*missing\|missing.*gantry-monitor' /tmp/doctor || fail "$(cat /tmp/doctor)"
# Each command has its page, and shells complete them.
manual=/usr/share/man/man8
commands=$(gantry help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | grep -v '^help$')
[ -n "$commands" ] || fail "no commands: $(gantry help)"
for page in gantry gantry-kubelet gantry-image-load $(echo "$commands" | sed 's/^/gantry-/'); do
    gzip --decompress --stdout "$manual/$page.8.gz" | grep -q '^\.SH SYNOPSIS' || fail "no page $page"
done
completed=$(bash -euc '. /usr/share/bash-completion/completions/gantry
    COMP_WORDS=(gantry expl) COMP_CWORD=1; _gantry gantry expl gantry; echo "${COMPREPLY[@]}"')
equal "what bash completes" explain "$completed"
for file in zsh/vendor-completions/_gantry fish/vendor_completions.d/gantry.fish; do
    grep -q timeline "/usr/share/$file" || fail "no $file"
done
# The pods of README, as it says.
(cd /tmp && cp -r /usr/share/doc/gantry/examples . && ls examples/web.yaml examples/broken.yaml) || fail "no examples"
rm -r /tmp/examples
equal "mode of the state" 711 "$(stat --format %a /var/lib/gantry)"
for unit in gantry.service kubelet.service kubelet.service.d/10-kubeadm.conf kubelet.service.d/20-gantry.conf; do
    [ -f "/usr/lib/systemd/system/$unit" ] || fail "no $unit"
done
for unit in gantry.service kubelet.service; do
    equal "$unit is enabled" "/usr/lib/systemd/system/$unit" \
        "$(readlink --canonicalize "/etc/systemd/system/multi-user.target.wants/$unit")"
done
# The file that the unit names is fine; there is no systemd here.
gantry runtime --config /etc/gantry/runtime.toml >/tmp/said 2>&1 && fail "a runtime without systemd"
grep -q 'reach systemd' /tmp/said || fail "$(cat /tmp/said)"

remove
[ -f /etc/gantry/runtime.toml ] || fail "removal took a configuration along"
[ ! -e /usr/bin/kubelet ] && [ ! -e /opt/cni ] || fail "removal left links"
purge
unchanged /tmp/before

# From installed to purged in one step, too.
install
purge
unchanged /tmp/before
