//! Which pods are meant by names or labels. Owns the choice and the words when there is none; never changes a pod.
//! Called by explain and stop.

use anyhow::{Result, bail};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{ListPodsRequest, Pod};
use tonic::transport::Channel;

use crate::args::{Selector, SomePods, Target, or_default};
use crate::client;

/// The pods that are named, or those whose labels fit.
pub(crate) async fn choose(client: &mut OperatorClient<Channel>, some: &SomePods) -> Result<Vec<Target>> {
    let namespace = some.namespace.as_deref();
    let Some(selector) = &some.selector else {
        return some.pods.iter().map(|pod| pod.target(namespace)).collect();
    };
    let list = client::answer(client.list_pods(ListPodsRequest::default()).await)?.pods;
    by_labels(list, selector, namespace, some.all_namespaces)
}

/// Those of the namespace, or of all, whose labels fit.
pub(crate) fn by_labels(
    list: Vec<Pod>,
    selector: &Selector,
    namespace: Option<&str>,
    everywhere: bool,
) -> Result<Vec<Target>> {
    let namespace = or_default(namespace);
    let here = |pod: &Pod| everywhere || pod.namespace == namespace;
    let fitting = list.into_iter().filter(|pod| here(pod) && selector.fits(&pod.labels));
    let targets: Vec<Target> =
        fitting.map(|Pod { namespace, name, .. }| Target { namespace, name }).collect();
    if targets.is_empty() {
        let place = if everywhere { String::new() } else { format!(" in namespace {namespace}") };
        bail!(
            "no pod{place} has the labels {selector}: `gantry ps -o yaml` shows labels, -A looks in every namespace"
        );
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_choose_in_one_namespace_or_in_all() {
        let pod = |namespace: &str, name: &str, app: &str| Pod {
            namespace: namespace.into(),
            name: name.into(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            ..Pod::default()
        };
        let list = || vec![pod("default", "a", "web"), pod("default", "b", "db"), pod("shop", "c", "web")];
        let names = |namespace, everywhere| {
            let selector = "app=web".parse().unwrap();
            let targets = by_labels(list(), &selector, namespace, everywhere).unwrap();
            targets.iter().map(Target::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(None, false), ["default/a"]);
        assert_eq!(names(Some("shop"), false), ["shop/c"]);
        assert_eq!(names(None, true), ["default/a", "shop/c"]);
        let error = by_labels(list(), &"app=x".parse().unwrap(), None, false).unwrap_err().to_string();
        assert!(error.starts_with("no pod in namespace default has the labels app=x"), "{error}");
    }
}
