printf '#!/bin/sh\necho mine\n' >/usr/bin/kubelet
chmod 750 /usr/bin/kubelet
everything >/tmp/before
install
equal "the one aside" mine "$(/usr/bin/kubelet.distrib)"
equal "kubelet" /usr/lib/gantry/gantry "$(readlink --canonicalize-existing /usr/bin/kubelet)"
remove
equal "given back" mine "$(kubelet)"
purge
unchanged /tmp/before
