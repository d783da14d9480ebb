//! What a flag of the kubelet does, where no field of the configuration says it. Owns a sentence for each of them. Shown
//! by `kubelet --help`, its manual page and docs/reference.

/// By name; upstream's meaning in our words.
const WORDS: [(&str, &str); 19] = [
    (
        "bootstrap-kubeconfig",
        "Kubeconfig to ask for a client certificate with, while --kubeconfig has none that works.",
    ),
    ("cert-dir", "Folder of the certificates that the kubelet asks for or makes."),
    ("cloud-provider", "`external` when a cloud controller initializes the node; empty for none."),
    ("config", "File of the configuration (KubeletConfiguration v1beta1); flags win over it."),
    (
        "config-dir",
        "Folder of files *.conf that are laid over the configuration, in the order of their names.",
    ),
    ("exit-on-lock-contention", "End when another process asks for --lock-file."),
    ("help", "Print this help."),
    ("hostname-override", "The node's name, in place of this machine's."),
    ("housekeeping-interval", "How often the use of containers is measured."),
    ("image-credential-provider-bin-dir", "Folder of the programs that give credentials for registries."),
    ("image-credential-provider-config", "File that says which of these programs is asked for which images."),
    ("kubeconfig", "Kubeconfig of the API server; without it the static pods of a folder run alone."),
    ("lock-file", "File that one kubelet holds at a time; the others wait for it."),
    ("node-ip", "The node's address, or one of each family with a comma between them."),
    ("node-labels", "Labels of the node when it is registered: key=value, with commas between them."),
    ("root-dir", "Folder of volumes, checkpoints and sockets of plugins."),
    ("runtime-cgroups", "Cgroup of the container runtime, for its statistics."),
    ("seccomp-default", "Give containers that name no seccomp profile the runtime's default one."),
    ("version", "Print the version."),
];

/// What the flag does; nothing for those whose field or deprecation says it.
#[must_use]
pub fn words(flag: &str) -> &'static str {
    WORDS.iter().find(|(name, _)| *name == flag).map_or("", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flag::all;

    #[test]
    fn each_flag_says_what_it_does() {
        let silent = |flag: &&super::super::Flag| {
            flag.field.is_empty() && flag.deprecated.is_empty() && words(flag.name).is_empty()
        };
        assert_eq!(all().iter().find(silent), None);
        for (name, _) in WORDS {
            assert!(all().iter().any(|flag| flag.name == name), "upstream has no flag {name}");
        }
    }
}
