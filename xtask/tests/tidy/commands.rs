//! Commands that README and docs show as lines of code: each is run by a test. Owns which test that is, by a text that
//! stands in it; never runs any.

use std::fs;

use super::{assert_none, root, walk};

/// How a command begins, the file that runs it, and what of it stands there; where several fit, the longest counts.
const RUN_BY: [(&str, &str, &str); 40] = [
    ("cargo xtask build", "xtask/src/tiers.rs", "build::build("),
    ("cargo xtask demo", "xtask/src/tiers.rs", "demo::outside("),
    ("cargo xtask dist", "xtask/src/dist.rs", "pub(crate) fn run("),
    ("cargo xtask kind down", "xtask/src/kind/tier.rs", "bed.delete()"),
    ("cargo xtask kind run", "xtask/src/kind/bed.rs", "\"kubectl\", \"get\""),
    ("cargo xtask kind up", "xtask/src/kind/tier.rs", "bed.create(nodes)"),
    // What all tiers are run by.
    ("cargo xtask test", "CONTRIBUTING.md", "`cargo xtask test` is what CI runs"),
    (
        "cp -r /usr/share/doc/gantry/examples",
        "xtask/src/dist/cases/whole.sh",
        "cp -r /usr/share/doc/gantry/examples .",
    ),
    ("cp -r share/*", "xtask/src/dist/cases/archive.sh", "cp -r share/* /usr/share/"),
    ("cp -r systemd/*", "xtask/src/dist/cases/archive.sh", "cp -r systemd/* /etc/systemd/system/"),
    ("curl http://127.0.0.1:8088/", "tests/standalone/documents.rs", "curl http://127.0.0.1:8088/"),
    ("docker exec kind-control-plane kubeadm token create", "vagrant/cluster.sh", "kubeadm token create"),
    ("docker inspect", "vagrant/cluster.sh", "docker inspect"),
    ("docker load", "xtask/src/kind.rs", "\"load\", \"--quiet\", \"--input\""),
    ("gantry cp", "tests/standalone/documents.rs", "gantry cp web:/etc/hostname"),
    ("gantry doctor", "tests/standalone/documents.rs", "gantry doctor"),
    ("gantry doctor --join", "cli/src/doctor/join.rs", "mod tests"),
    ("gantry exec", "tests/standalone/documents.rs", "gantry exec -it web -- sh"),
    ("gantry explain", "tests/standalone/documents.rs", "gantry explain broken"),
    ("gantry join", "tests/join/main.rs", "\"--token\""),
    ("gantry join --kind", "cli/src/join/docker.rs", "mod tests"),
    ("gantry join --kubeconfig", "tests/join/main.rs", "\"join\", \"--kubeconfig\""),
    ("gantry leave", "tests/join/main.rs", "\"leave\", \"--delete-node\""),
    ("gantry logs", "tests/standalone/documents.rs", "gantry logs web -f"),
    ("gantry node", "tests/standalone/kubelet/whole_node.rs", "arg(\"node\")"),
    ("gantry ps", "tests/standalone/documents.rs", "gantry ps"),
    ("gantry run", "tests/standalone/documents.rs", "gantry run examples/web.yaml"),
    ("gantry stop", "tests/standalone/documents.rs", "gantry stop web"),
    ("gantry timeline", "tests/standalone/documents.rs", "gantry timeline web --svg web.svg"),
    ("gantry wait", "tests/standalone/documents.rs", "gantry wait --for=condition=Ready"),
    ("install -D", "xtask/src/dist/cases/archive.sh", "install -D runtime.toml /etc/gantry/runtime.toml"),
    ("kind create cluster", "xtask/src/kind.rs", "\"create\", \"cluster\""),
    ("kubeadm", "tests/join/main.rs", "kubeadm"),
    ("kubectl drain", "xtask/src/join_vm/steps.rs", "\"drain\""),
    ("kubectl get node", "tests/join/main.rs", "\"get\", \"node\""),
    ("ln -s", "xtask/src/dist/cases/archive.sh", "ln -s /usr/local/lib/gantry/gantry /usr/bin/gantry"),
    ("sudo apt-get", "xtask/src/join_vm/package.rs", "apt-get"),
    ("sudo ln -s", "xtask/src/dist/cases/archive.sh", "ln -s /usr/local/lib/gantry/gantry /usr/bin/gantry"),
    ("sudo apt", "xtask/src/join_vm/package.rs", "apt-get"),
    ("systemctl", "xtask/src/join_vm/package.rs", "systemctl"),
];

/// That no test runs as they stand, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("kind get kubeconfig", "kind's own; what it prints is what `tests/join` writes for --kubeconfig"),
    ("sudo systemctl", "systemd's own; typed by hand in docs/evidence/2026-11-28-first-hour.txt"),
];

/// Lines of code of the pages for users, as they are typed: without a comment, and without who types `gantry` as root.
fn shown() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("README.ko.md")];
    let mut pages = Vec::new();
    walk(&root().join("docs"), "md", &mut pages);
    // Records and references show outputs and forms.
    paths.extend(pages.into_iter().filter(|path| path.parent() == Some(&root().join("docs"))));
    let mut shown = Vec::new();
    for path in paths {
        let page = path.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("\n```").skip(1).step_by(2) {
            // The rest of the line that opens it says what it is: of data or of a drawing when it says anything.
            let Some(lines) = block.strip_prefix('\n') else { continue };
            for line in lines.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end()) {
                let line =
                    line.strip_prefix("sudo gantry").map_or(line.to_owned(), |rest| format!("gantry{rest}"));
                if is_command(&line) {
                    shown.push((page.clone(), line));
                }
            }
        }
    }
    shown
}

/// Begins with a program's name in small letters; a drawing does not.
fn is_command(line: &str) -> bool {
    let program = line.split(' ').next().unwrap_or_default();
    let known = [
        "cargo", "cp", "curl", "crictl", "docker", "gantry", "install", "kind", "kubeadm", "kubectl",
        "kubelet",
    ];
    known.contains(&program) || ["ln", "sudo", "systemctl", "vagrant", "apt", "man"].contains(&program)
}

#[test]
fn each_command_that_documents_show_is_run_by_a_test() {
    let shown = shown();
    let (mut offenders, mut used) = (Vec::new(), Vec::new());
    for (page, line) in &shown {
        let fits = |start: &str| {
            line.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        if let Some((start, _)) = NOT_RUN.iter().find(|(start, _)| fits(start)) {
            used.push(*start);
            continue;
        }
        let run_by = RUN_BY.iter().filter(|(start, ..)| fits(start)).max_by_key(|(start, ..)| start.len());
        let Some((start, file, text)) = run_by else {
            offenders.push(format!("{page}: `{line}` is in no row of RUN_BY"));
            continue;
        };
        used.push(*start);
        let test = fs::read_to_string(root().join(file)).unwrap_or_default();
        if !test.contains(text) {
            offenders.push(format!("{page}: `{line}`: {file} has no {text:?} any more"));
        }
    }
    let rows = RUN_BY.iter().map(|row| row.0).chain(NOT_RUN.iter().map(|row| row.0));
    offenders
        .extend(rows.filter(|row| !used.contains(row)).map(|row| format!("no page shows `{row}` any more")));
    assert!(shown.len() > 50, "{} commands are shown: has the form of the pages changed?", shown.len());
    assert_none("a command that README and docs show is run by a test", &offenders);
}
