//! What a runtime tells of itself, over CRI. Owns the mapping of these answers; never runs a pod.
//! Called through [`About`].

use gantry_proto::cri as wire;
use tonic::Status;

use super::{CriRuntime, failure, timed};
use crate::runtime::about::{About, Condition, Features, Handler, Health, StoredImage, Version};
use crate::runtime::{Effect, Error};

fn unavailable(status: &Status) -> Error {
    Error::Features { source: failure(status) }
}

impl About for CriRuntime {
    fn version(&self) -> Effect<'_, Version> {
        Box::pin(async move {
            let ask = wire::VersionRequest { version: String::new() };
            let answer = self
                .runtime()
                .version(timed(ask, self.node.request_timeout))
                .await
                .map_err(|s| unavailable(&s))?
                .into_inner();
            Ok(Version { name: answer.runtime_name, version: answer.runtime_version })
        })
    }

    fn health(&self) -> Effect<'_, Health> {
        Box::pin(async move {
            let ask = wire::StatusRequest { verbose: false };
            let answer = self
                .runtime()
                .status(timed(ask, self.node.request_timeout))
                .await
                .map_err(|s| unavailable(&s))?;
            Ok(health(answer.into_inner()))
        })
    }

    fn images(&self) -> Effect<'_, Vec<StoredImage>> {
        Box::pin(async move {
            let ask = wire::ListImagesRequest { filter: None };
            let answer = self
                .images()
                .list_images(timed(ask, self.node.request_timeout))
                .await
                .map_err(|s| unavailable(&s))?;
            let images = answer.into_inner().images.into_iter().map(|image| StoredImage {
                digests: image.repo_digests,
                tags: image.repo_tags,
                size: i64::try_from(image.size).unwrap_or(i64::MAX),
            });
            Ok(images.collect())
        })
    }

    fn set_pod_cidr<'a>(&'a self, cidr: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let network_config = Some(wire::NetworkConfig { pod_cidr: cidr.to_owned() });
            let runtime_config = Some(wire::RuntimeConfig { network_config });
            let ask = wire::UpdateRuntimeConfigRequest { runtime_config };
            self.runtime()
                .update_runtime_config(timed(ask, self.node.request_timeout))
                .await
                .map_err(|s| unavailable(&s))?;
            Ok(())
        })
    }
}

fn health(answer: wire::StatusResponse) -> Health {
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    let find = |kind: &str| {
        conditions.iter().find(|condition| condition.r#type == kind).map(|condition| Condition {
            kind: kind.to_owned(),
            holds: condition.status,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    };
    let handlers = answer.runtime_handlers.into_iter().map(|handler| {
        let features = handler.features.unwrap_or_default();
        Handler {
            name: handler.name,
            recursive_read_only: features.recursive_read_only_mounts,
            user_namespaces: features.user_namespaces,
        }
    });
    Health {
        runtime: find("RuntimeReady"),
        network: find("NetworkReady"),
        handlers: handlers.collect(),
        features: answer.features.map(|features| Features {
            supplemental_groups_policy: features.supplemental_groups_policy,
            user_namespaces_host_network: features.user_namespaces_host_network,
        }),
    }
}
