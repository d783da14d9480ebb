//! The flags of cp and inspect. Owns the form of a place to copy from or to, kubectl's; never acts. Parsed by
//! [`crate::main`].

use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::{AgentFlags, PodFlags, Target, or_default};

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// From where: PATH here, or [NAMESPACE/]POD:PATH.
    #[arg(value_name = "FROM")]
    pub(crate) from: FileSpec,
    /// To where; one of both is in a pod.
    #[arg(value_name = "TO")]
    pub(crate) to: FileSpec,
    /// The container; when not given, the one of the annotation
    /// kubectl.kubernetes.io/default-container, or the first.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Leave owner and permissions to the container when copying into it.
    #[arg(long)]
    pub(crate) no_preserve: bool,
    /// The pod's namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// Only this container, without the sandbox.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "json")]
    pub(crate) output: ObjectFormat,
}

/// How an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    Json,
    Yaml,
}

/// Where something is copied from or to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSpec {
    /// As it was given.
    pub(crate) text: String,
    /// Namespace, where it is said, and pod; none for this machine.
    pub(crate) pod: Option<(Option<String>, String)>,
    /// There.
    pub(crate) file: String,
}

impl FromStr for FileSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |pod, file: &str| Self { text: text.to_owned(), pod, file: file.to_owned() };
        let spec = match text.split_once(':') {
            None => whole(None, text),
            Some(("", _)) => return Err(bad()),
            Some((pod, file)) => match pod.split('/').collect::<Vec<_>>().as_slice() {
                [pod] => whole(Some((None, (*pod).to_owned())), file),
                [namespace, pod] if !namespace.is_empty() && !pod.is_empty() => {
                    whole(Some((Some((*namespace).to_owned()), (*pod).to_owned())), file)
                }
                // A path of this machine with a colon in it.
                _ if text.starts_with(['/', '.']) => whole(None, text),
                _ => return Err(bad()),
            },
        };
        if spec.file.is_empty() { Err("filepath can not be empty".to_owned()) } else { Ok(spec) }
    }
}

impl FileSpec {
    /// The pod, given what `--namespace` says, which counts for less.
    pub(crate) fn target(&self, namespace: Option<&str>) -> Option<Target> {
        let (own, name) = self.pod.clone()?;
        let namespace = own.unwrap_or_else(|| or_default(namespace).to_owned());
        Some(Target { namespace, name })
    }
}

fn bad() -> String {
    "filespec must match the canonical format: [[namespace/]pod:]file/path".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_kubectl_has_them() {
        let spec = |text: &str| text.parse::<FileSpec>().map(|spec| (spec.target(Some("n")), spec.file));
        let at = |namespace: &str, name: &str| {
            Some(Target { namespace: namespace.to_owned(), name: name.to_owned() })
        };
        for (text, pod, file) in [
            ("a/b", None, "a/b"),
            ("web:/etc", at("n", "web"), "/etc"),
            ("shop/web:etc/x:y", at("shop", "web"), "etc/x:y"),
            ("./a/b:c", None, "./a/b:c"),
            ("/tmp/x/a:b", None, "/tmp/x/a:b"),
        ] {
            assert_eq!(spec(text).unwrap(), (pod, file.to_owned()), "{text}");
        }
        for bad in ["", ":x", "web:", "a/b/c:x", "shop/:x"] {
            assert!(spec(bad).is_err(), "{bad}");
        }
    }
}
