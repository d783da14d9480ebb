//! Names of pods as people write them, and the flags that go with one. Owns the forms; never looks a pod
//! up. Parsed by [`crate::main`].

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::Args;
use gantry_proto::operator::Pod;

use super::{AgentFlags, Selector};

/// What stands before a pod's name in kubectl's own form, and what `gantry ps -o name` prints.
const KINDS: [&str; 3] = ["pod", "pods", "po"];
/// Where a pod is when nobody says where.
const DEFAULT: &str = "default";

/// `NAME`, `pod/NAME` or `NAMESPACE/NAME`; `pod/x` is never pod x of a namespace `pod`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodName {
    namespace: Option<String>,
    name: String,
}

/// One pod, without doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (before, name) = match text.split_once('/') {
            None => (None, text),
            Some((kind, name)) if KINDS.contains(&kind) => (None, name),
            Some((namespace, name)) => (Some(namespace), name),
        };
        if name.is_empty() || name.contains('/') || before == Some("") {
            return Err(format!("expected NAME, pod/NAME or NAMESPACE/NAME, not {text:?}"));
        }
        Ok(Self { namespace: before.map(str::to_owned), name: name.to_owned() })
    }
}

impl PodName {
    /// The pod, given what `--namespace` says.
    ///
    /// # Errors
    /// When both name a namespace, and not the same one.
    pub(crate) fn target(&self, namespace: Option<&str>) -> Result<Target> {
        if let (Some(own), Some(said)) = (self.namespace.as_deref(), namespace)
            && own != said
        {
            bail!("{self} is in namespace {own}, but --namespace says {said}: leave one of them out");
        }
        let namespace = self.namespace.as_deref().or(namespace).unwrap_or(DEFAULT).to_owned();
        Ok(Target { namespace, name: self.name.clone() })
    }

    /// Whether it is meant; without a namespace, in any.
    pub(crate) fn is(&self, namespace: &str, name: &str) -> bool {
        self.name == name && self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The namespace that is meant when none is named.
pub(crate) fn or_default(namespace: Option<&str>) -> &str {
    namespace.unwrap_or(DEFAULT)
}

/// Which pod of which agent.
#[derive(Debug, Args)]
pub(crate) struct PodFlags {
    /// The pod: NAME, pod/NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub(crate) pod: PodName,
    /// The pod's namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

impl PodFlags {
    /// The pod that is meant.
    ///
    /// # Errors
    /// As [`PodName::target`].
    pub(crate) fn target(&self) -> Result<Target> {
        self.pod.target(self.namespace.as_deref())
    }
}

/// Some pods of one agent, by name or by labels.
#[derive(Debug, Args)]
pub(crate) struct SomePods {
    /// The pods: NAME, pod/NAME or NAMESPACE/NAME.
    #[arg(required_unless_present = "selector", value_name = "POD")]
    pub(crate) pods: Vec<PodName>,
    /// The pods with these labels, as in app=web,tier!=db.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    pub(crate) selector: Option<Selector>,
    /// The pods' namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// With --selector: in every namespace.
    #[arg(short = 'A', long, conflicts_with_all = ["pods", "namespace"])]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

/// Which pods of a list are shown; all of them when nothing is said.
#[derive(Debug, Args)]
pub(crate) struct Only {
    /// Only pods with these labels, as in app=web,tier!=db.
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<Selector>,
    /// Only pods of this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Pods of every namespace, which is the default here.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl Only {
    /// Whether the pod is shown.
    pub(crate) fn fits(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| pod.namespace == *namespace)
            && self.selector.as_ref().is_none_or(|selector| selector.fits(&pod.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str, namespace: Option<&str>) -> Result<String> {
        text.parse::<PodName>().map_err(anyhow::Error::msg)?.target(namespace).map(|t| t.to_string())
    }

    #[test]
    fn a_pod_is_named_in_three_ways() {
        for (text, namespace, want) in [
            ("web", None, "default/web"),
            ("web", Some("shop"), "shop/web"),
            ("pod/web", None, "default/web"),
            ("pods/web", Some("shop"), "shop/web"),
            ("shop/web", None, "shop/web"),
            ("shop/web", Some("shop"), "shop/web"),
        ] {
            assert_eq!(target(text, namespace).unwrap(), want, "{text} {namespace:?}");
        }
        let error = target("shop/web", Some("default")).unwrap_err().to_string();
        assert_eq!(
            error,
            "shop/web is in namespace shop, but --namespace says default: leave one of them out"
        );
        for bad in ["", "/", "pod/", "/web", "a/b/c", "pod/a/b"] {
            assert!(bad.parse::<PodName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_without_namespace_fits_any() {
        let name = |text: &str| text.parse::<PodName>().unwrap();
        assert!(name("pod/web").is("shop", "web") && name("web").is("default", "web"));
        assert!(name("shop/web").is("shop", "web") && !name("shop/web").is("default", "web"));
        assert!(!name("web").is("default", "web2"));
    }
}
