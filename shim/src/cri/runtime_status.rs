//! The answer to Status: conditions, handlers and features. Pure. Called by `cri`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gantry_proto::cri;

use crate::config::handlers::HandlerConfig;
use crate::node::Node;

/// `network`: whether it is ready, and what is in the way; `bad`: CDI files that can't be used.
pub(super) fn of(
    node: &Node,
    network: (bool, String),
    verbose: bool,
    bad: &BTreeMap<PathBuf, Vec<String>>,
) -> cri::StatusResponse {
    let (ready, message) = network;
    let runtime = cri::RuntimeCondition {
        r#type: "RuntimeReady".into(),
        status: true,
        ..cri::RuntimeCondition::default()
    };
    let network = cri::RuntimeCondition {
        r#type: "NetworkReady".into(),
        status: ready,
        reason: if ready { String::new() } else { "NetworkPluginNotReady".into() },
        message,
    };
    let info = if verbose {
        // JSON, as crictl expects of every value here.
        let config = serde_json::to_string(&node.config).ok().map(|json| ("config".to_owned(), json));
        let bad = serde_json::to_string(bad).ok().filter(|_| !bad.is_empty());
        config.into_iter().chain(bad.map(|json| ("cdiErrors".to_owned(), json))).collect()
    } else {
        BTreeMap::new()
    };
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions: vec![runtime, network] }),
        info,
        runtime_handlers: handlers(node),
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: node.user_namespaces.is_ok(),
        }),
    }
}

/// The default one first.
fn handlers(node: &Node) -> Vec<cri::RuntimeHandler> {
    let own = cri::RuntimeHandlerFeatures {
        recursive_read_only_mounts: true,
        user_namespaces: node.user_namespaces.is_ok(),
    };
    let named = node.config.handlers.iter().map(|(name, handler)| {
        let features = match handler {
            // Mounts are made read-only before the program sees them, whatever it can do itself.
            HandlerConfig::Oci { .. } => cri::RuntimeHandlerFeatures { user_namespaces: false, ..own },
            HandlerConfig::Gantry { .. } => own,
        };
        cri::RuntimeHandler { name: name.clone(), features: Some(features) }
    });
    std::iter::once(cri::RuntimeHandler { name: String::new(), features: Some(own) }).chain(named).collect()
}
