//! Which objects of its namespace a pod refers to. Pure: never asks for one. Called by the sources of
//! objects, which keep these at hand.

use std::collections::BTreeSet;

use gantry_model::pod::Pod;
use gantry_model::pod::env::{EnvFromSource, EnvValue};
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::volume::{CsiVolume, Projection, VolumeSource};

/// Of an object that is watched by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// See [`super::ConfigMap`].
    ConfigMap,
    /// See [`super::Secret`].
    Secret,
}

/// What a pod needs beside itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// By name, in the pod's namespace.
    pub objects: BTreeSet<(Kind, String)>,
    /// Tokens of its service account.
    pub tokens: BTreeSet<TokenOf>,
}

impl References {
    /// Everything the pod's volumes, variables and pulls refer to.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let mut found = Self::default();
        for name in &pod.pull_secrets {
            found.add(Kind::Secret, name);
        }
        for container in pod.every_container() {
            for variable in &container.env {
                match &variable.value {
                    EnvValue::ConfigMapKey(key) => found.add(Kind::ConfigMap, &key.name),
                    EnvValue::SecretKey(key) => found.add(Kind::Secret, &key.name),
                    EnvValue::Literal(_)
                    | EnvValue::Field(_)
                    | EnvValue::Resource(_)
                    | EnvValue::FileKey(_) => {}
                }
            }
            for from in &container.env_from {
                match &from.source {
                    EnvFromSource::ConfigMap(name) => found.add(Kind::ConfigMap, name),
                    EnvFromSource::Secret(name) => found.add(Kind::Secret, name),
                }
            }
        }
        let sources = pod.volumes.iter().filter_map(|volume| match &volume.source {
            VolumeSource::Projected { sources, .. } => Some(sources),
            _ => None,
        });
        for volume in &pod.volumes {
            if let VolumeSource::Csi(CsiVolume { secret: Some(secret), .. }) = &volume.source {
                found.add(Kind::Secret, secret);
            }
            if let VolumeSource::Migrated(Ok(of)) = &volume.source
                && let Some((_, secret)) = &of.secret
            {
                found.add(Kind::Secret, secret);
            }
        }
        for source in sources.flatten() {
            match source {
                Projection::ConfigMap(keys) => found.add(Kind::ConfigMap, &keys.name),
                Projection::Secret(keys) => found.add(Kind::Secret, &keys.name),
                Projection::Token(token) => {
                    found.tokens.insert(token.of(pod));
                }
                Projection::Downward(_) => {}
            }
        }
        found
    }

    fn add(&mut self, kind: Kind, name: &str) {
        // A pull secret without a name is one that the API lets through.
        if !name.is_empty() {
            self.objects.insert((kind, name.to_owned()));
        }
    }
}
