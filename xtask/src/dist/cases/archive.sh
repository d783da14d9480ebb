(cd /dist && sha256sum --check --quiet SHA256SUMS) || fail "SHA256SUMS"
tar --extract --gzip --file /dist/gantry-*-linux-amd64.tar.gz --directory /usr/local/lib
mv /usr/local/lib/gantry-*-linux-amd64 /usr/local/lib/gantry
cd /usr/local/lib/gantry
equal "the owner" "0:0" "$(stat --format %u:%g kubelet cni/bridge gantry-monitor | sort --unique)"

ln -s /usr/local/lib/gantry/gantry /usr/bin/gantry
ln -s /usr/local/lib/gantry/gantry /usr/bin/kubelet
mkdir -p /etc/systemd/system
cp -r systemd/* /etc/systemd/system/
command install -D runtime.toml /etc/gantry/runtime.toml
command install -D -m 644 dbus/gantry-kubelet.conf /etc/dbus-1/system.d/gantry-kubelet.conf
cp -r share/* /usr/share/

[ -f /etc/systemd/system/kubelet.service.d/10-kubeadm.conf ] || fail "no drop-in"
case "$(gantry --version)" in "gantry "*) ;; *) fail "gantry" ;; esac
case "$(kubelet --version)" in "Kubernetes v1."*) ;; *) fail "kubelet" ;; esac
case "$(CNI_COMMAND=VERSION cni/bridge </dev/null)" in *'"supportedVersions"'*) ;; *) fail "bridge" ;; esac
[ -f /usr/share/man/man8/gantry-run.8.gz ] || fail "no manual page"
bash -n /usr/share/bash-completion/completions/gantry || fail "no completion"
