//! Examples below the help of commands. Owns their text only. Shown by clap.

pub(super) const NODE: &str = "\
Examples:
  gantry node --systemd-cgroup -- --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml
  gantry node --config /etc/gantry/runtime.toml -- --config /var/lib/kubelet/config.yaml   standalone kubelet";

pub(super) const LOGS: &str = "\
Examples:
  gantry logs web -f                        follow what a pod writes
  gantry logs pod/web pod/db --tail 20      of two pods, each line with the pod it is from
  gantry logs -l app=web -A --since 5m      of every pod with that label";

pub(super) const STATS: &str = "\
Examples:
  gantry stats              what all containers use
  gantry stats -w shop/web  follow one pod";

pub(super) const PS: &str = "\
Examples:
  gantry ps -o wide
  gantry ps web -o json | jq .status.podIP";

pub(super) const CP: &str = "\
Examples:
  gantry cp ./site web:/usr/share/nginx/html   a folder into a pod
  gantry cp shop/web:/var/log/app.log app.log  a file out of one
  gantry cp conf.d web:/etc -c side            into a container of it";

pub(super) const WAIT: &str = "\
Examples:
  gantry wait --for=condition=Ready pod/web
  gantry wait --for=delete pod/web --timeout 60s
  gantry wait --for=jsonpath='{.status.phase}'=Succeeded -l job-name=sum";

pub(super) const INSPECT: &str = "\
Examples:
  gantry inspect web | jq '.containers[0].info.pid'
  gantry inspect web -c side -o yaml";

pub(super) const LOGIN: &str = "\
Examples:
  gantry login registry.example.com                               asks for user and password
  gantry login registry:5000 -u me --password-stdin < token.txt
  gantry login -u me                                              Docker Hub";

pub(super) const LOGOUT: &str = "\
Examples:
  gantry logout registry.example.com";

pub(super) const PULL: &str = "\
Examples:
  gantry pull docker.io/library/nginx:1.29
  gantry pull -q registry:5000/web:v1 registry:5000/db:v1";

pub(super) const IMAGES: &str = "\
Examples:
  gantry images -o wide
  gantry images nginx      every tag of it
  gantry images -q";

pub(super) const RUN: &str = "\
Examples:
  gantry run examples/web.yaml                            until Ctrl-C
  gantry run -d web.yaml db.yaml                          in the background, until `gantry down`
  gantry run https://k8s.io/examples/pods/simple-pod.yaml";

pub(super) const APPLY: &str = "\
Examples:
  gantry apply -f web.yaml
  gantry apply -f manifests/                              every manifest of the folder
  gantry apply -f https://k8s.io/examples/pods/simple-pod.yaml
  kubectl get pod web -o yaml | gantry apply -f -";

pub(super) const PORT_FORWARD: &str = "\
Examples:
  gantry port-forward web 8080:80   port 8080 here is port 80 of the pod
  gantry port-forward web :http     any port here; there the one that the pod calls http";

pub(super) const EXPLAIN: &str = "\
Examples:
  gantry explain web
  gantry explain -l app=web -A
  gantry explain web -o json | jq -r '.findings[].remedy'";

pub(super) const TIMELINE: &str = "\
Examples:
  gantry timeline web
  gantry timeline web --html web.html              a page: stages fold, and say what they are
  gantry timeline web -o json > before.json        kept, to compare with a later start
  gantry timeline --compare before.json web";

pub(super) const STOP: &str = "\
Examples:
  gantry stop web shop/db
  gantry stop --all --grace 0                                   kills at once
  gantry delete -f web.yaml -f https://example.com/more.yaml    the pods that these describe";
