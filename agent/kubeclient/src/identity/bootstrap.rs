//! The way from a kubeconfig, or from one that may only ask for a certificate, to clients. Owns the
//! order of that; never a request beyond the certificate's. Called by the wiring.

#![expect(clippy::disallowed_methods, reason = "the tasks that keep credentials live as long as the kubelet")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_metrics::Metrics;
use gantry_model::clock::SystemClock;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::client::{self, Clients, Limits};
use super::csr::{self, Signer, Template};
use super::kubeconfig::{self, Access, Authorization, Certificate, User};
use super::rotation::{self, Rotation};
use super::store::{self, Store};
use super::{Current, Names, Notice, Pair, pair};

/// What the command line says about it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// The node's name.
    pub node: String,
    /// rotateCertificates.
    pub rotate: bool,
    /// How fast to ask.
    pub limits: Limits,
    /// Counts what is asked, and how renewals go.
    pub metrics: Arc<Metrics>,
}

/// A kubelet that the API server knows, or will.
#[derive(Debug)]
pub struct Identity {
    /// The ways there.
    pub clients: Clients,
    /// The client certificate, if one is used.
    pub current: Current,
    /// Set, with a reason, when only new credentials from outside help: the kubelet ends.
    pub over: watch::Receiver<Option<String>>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid kubeconfig")]
    Kubeconfig(#[source] kubeconfig::Error),
    #[error("unable to load bootstrap kubeconfig")]
    Bootstrap(#[source] kubeconfig::Error),
    #[error("write the kubeconfig")]
    Write(#[source] kubeconfig::Error),
    #[error("client certificate store")]
    Store(#[from] store::Error),
    #[error("the client of the API server")]
    Client(#[from] client::Error),
    #[error("bootstrap: request a certificate")]
    Request(#[from] csr::Error),
    #[error("bootstrap: the key of the request")]
    Key(#[source] rotation::Error),
    #[error("client-certificate-data")]
    Data(#[from] pair::Error),
}

const KEY_FILE: &str = "kubelet-client.key.tmp";

/// How long the first certificate may take when nothing starts without it.
const BLOCKING: Duration = Duration::from_secs(3600);

/// Gets clients. With rotation the first certificate comes in the background.
///
/// # Errors
/// When the files say nothing usable, or the certificate is refused.
pub async fn start(settings: Settings, notices: mpsc::Sender<Notice>) -> Result<Identity, Error> {
    if settings.rotate { rotating(&settings, notices) } else { standing(settings).await }
}

fn template(node: &str) -> Template {
    Template { node: node.to_owned(), names: Names::default() }
}

/// Whether a kubeconfig's client certificate can still be used.
fn is_valid(path: &Path) -> bool {
    if !path.exists() {
        return false;
    }
    let why = match kubeconfig::read(path) {
        Err(error) => chain(&error),
        Ok(access) => match access.user.certificate.as_ref().map(Certificate::load) {
            None => "it has no client certificate".to_owned(),
            Some(Err(error)) => chain(&error),
            Some(Ok(pair)) if pair.is_expired(Timestamp::now()) => {
                format!(
                    "part of the existing bootstrap client certificate is expired: {}",
                    pair.leaf().not_after
                )
            }
            Some(Ok(_)) => return true,
        },
    };
    tracing::warn!(path = %path.display(), why, "the kubeconfig is of no use any more");
    false
}

fn needs_bootstrap(settings: &Settings) -> Option<&Path> {
    settings.bootstrap.as_deref().filter(|_| !is_valid(&settings.kubeconfig))
}

/// The same server, and nobody in particular.
fn anonymous(access: &Access) -> Access {
    Access { user: User::default(), ..access.clone() }
}

/// As upstream: a program's credentials only ask for the certificate.
fn without_program(access: Access) -> Access {
    match &access.user.authorization {
        Some(Authorization::Program(_)) => anonymous(&access),
        _ => access,
    }
}

fn rotating(settings: &Settings, notices: mpsc::Sender<Notice>) -> Result<Identity, Error> {
    let (asking, access) = match needs_bootstrap(settings) {
        Some(bootstrap) => {
            let asking = kubeconfig::read(bootstrap).map_err(Error::Bootstrap)?;
            let current = Store::open("kubelet-client", &settings.cert_dir, None)?.current_path();
            kubeconfig::write(&settings.kubeconfig, &asking, &current).map_err(Error::Write)?;
            tracing::info!("using the bootstrap credentials to request a certificate");
            (asking.clone(), anonymous(&asking))
        }
        None => {
            let access = kubeconfig::read(&settings.kubeconfig).map_err(Error::Kubeconfig)?;
            (access.clone(), without_program(access))
        }
    };
    let (given, data) = match access.user.certificate.clone() {
        Some(Certificate::Files { certificate, key }) => (Some((certificate, key)), None),
        Some(Certificate::Data { certificate, key }) => (None, Some((certificate, key))),
        None => (None, None),
    };
    let store = Store::open("kubelet-client", &settings.cert_dir, given)?;
    let mut force = false;
    let mut first = store.current()?.filter(|pair| !pair.is_expired(Timestamp::now()));
    if let (None, Some((certificate, key))) = (&first, data) {
        // kubeadm gives control planes a certificate of higher rights: it is replaced at once.
        first = Some(store.update(&certificate, &key, Timestamp::now())?);
        force = true;
    }
    let (out, current) = watch::channel(first.map(Arc::new));
    let access = Access { user: User { certificate: None, ..access.user }, ..access };
    let patient = access.user.authorization.is_none();
    let clients = Clients::new(&access, &current, settings.limits, patient, &settings.metrics)?;
    let (healthy_in, healthy) = watch::channel(true);
    let ask = asker(asking, access, current.clone(), settings.metrics.clone());
    let (_, template) = watch::channel(Some(template(&settings.node)));
    let rotation = Rotation {
        key_file: Some(settings.cert_dir.join(KEY_FILE)),
        store,
        signer: Signer::Client,
        template,
        current: out,
        ask,
        notices,
        healthy: healthy_in,
        force,
        metrics: settings.metrics.clone(),
    };
    let shown = current.clone();
    settings.metrics.certificate_manager_client_expiration.of(move || rotation::remaining_seconds(&shown));
    tokio::spawn(rotation.run());
    let over = watch_for_loss(current.clone(), healthy);
    renew_clients_on_change(clients.clone(), current.clone());
    Ok(Identity { clients, current, over })
}

/// With a certificate it asks for the next one itself; without, whoever may ask for the first.
fn asker(asking: Access, access: Access, current: Current, metrics: Arc<Metrics>) -> rotation::Ask {
    let (_, nobody) = watch::channel(None);
    let counted = metrics.clone();
    let first = move || -> Result<kube::Client, client::Error> {
        let shown = match &asking.user.certificate {
            Some(certificate) => {
                let pair = certificate.load()?;
                watch::channel(Some(Arc::new(pair))).1
            }
            None => nobody.clone(),
        };
        client::single(&asking, &shown, &counted)
    };
    Box::new(move |valid| if valid { client::single(&access, &current, &metrics) } else { first() })
}

/// Ends the process's hope once nothing here can help any more.
fn watch_for_loss(current: Current, healthy: watch::Receiver<bool>) -> watch::Receiver<Option<String>> {
    let (out, over) = watch::channel(None);
    let clock = SystemClock::new();
    tokio::spawn(async move {
        tokio::select! {
            // Both only wait.
            () = out.closed() => {}
            reason = rotation::must_exit(current, healthy, &clock) => {
                out.send_replace(Some(reason));
            }
        }
    });
    over
}

/// New requests show the new certificate; watches stay where they are.
fn renew_clients_on_change(clients: Clients, mut current: Current) {
    tokio::spawn(async move {
        while current.changed().await.is_ok() {
            tracing::info!("the client certificate has changed: new requests use new connections");
            clients.renew();
        }
    });
}

async fn standing(settings: Settings) -> Result<Identity, Error> {
    if let Some(bootstrap) = needs_bootstrap(&settings) {
        let asking = kubeconfig::read(bootstrap).map_err(Error::Bootstrap)?;
        first_certificate(&settings, &asking).await?;
    }
    let access = kubeconfig::read(&settings.kubeconfig).map_err(Error::Kubeconfig)?;
    let current = match access.user.certificate.clone() {
        Some(Certificate::Files { certificate, key }) => follow_files(certificate, key)?,
        Some(Certificate::Data { certificate, key }) => {
            watch::channel(Some(Arc::new(Pair::parse(&certificate, &key)?))).1
        }
        None => watch::channel(None).1,
    };
    let access = Access { user: User { certificate: None, ..access.user }, ..access };
    let clients = Clients::new(&access, &current, settings.limits, false, &settings.metrics)?;
    renew_clients_on_change(clients.clone(), current.clone());
    // Nobody here gets another: it is replaced from outside, or by a restart.
    let (kept, over) = watch::channel(None);
    tokio::spawn(async move { kept.closed().await });
    Ok(Identity { clients, current, over })
}

/// A pair of files, as they are; a change that is no pair leaves the last one.
pub(super) fn follow_files(certificate: PathBuf, key: PathBuf) -> Result<Current, store::Error> {
    let first = store::load(&certificate, &key)?;
    let (out, current) = watch::channel(Some(Arc::new(first)));
    tokio::spawn(async move {
        let mut told = String::new();
        loop {
            tokio::select! {
                // Both only wait.
                () = out.closed() => return,
                () = tokio::time::sleep(super::ca::EVERY) => {}
            }
            match store::load(&certificate, &key) {
                Ok(pair) => {
                    told.clear();
                    let same = |old: &Option<Arc<Pair>>| {
                        old.as_ref().is_some_and(|old| old.key().cert == pair.key().cert)
                    };
                    if !same(&out.borrow()) {
                        tracing::info!(path = %certificate.display(), "the certificate has changed");
                        out.send_replace(Some(Arc::new(pair)));
                    }
                }
                Err(error) => {
                    let text = chain(&error);
                    if text != told {
                        tracing::warn!(error = text, "keeping the certificate as it was");
                        told = text;
                    }
                }
            }
        }
    });
    Ok(current)
}

async fn first_certificate(settings: &Settings, asking: &Access) -> Result<(), Error> {
    let store = Store::open("kubelet-client", &settings.cert_dir, None)?;
    let key_file = settings.cert_dir.join(KEY_FILE);
    let shown = match &asking.user.certificate {
        Some(certificate) => watch::channel(Some(Arc::new(certificate.load()?))).1,
        None => watch::channel(None).1,
    };
    let client = client::single(
        &Access { user: User { certificate: None, ..asking.user.clone() }, ..asking.clone() },
        &shown,
        &settings.metrics,
    )?;
    let (key, template) = (rotation::kept_key(&key_file).map_err(Error::Key)?, template(&settings.node));
    let name = csr::digested_name(&template, &key, Signer::Client);
    let asked = ask_until_there(&client, &template, &key, name).await?;
    tracing::info!("waiting for client certificate to be issued");
    let certificate = csr::wait(client, &asked, BLOCKING).await?;
    store.update(&certificate, key.serialize_pem().as_bytes(), Timestamp::now())?;
    match std::fs::remove_file(&key_file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %key_file.display(), %error, "cannot remove the key of the request");
        }
        _ => {}
    }
    kubeconfig::write(&settings.kubeconfig, asking, &store.current_path()).map_err(Error::Write)
}

/// An API server that is not there yet gets a minute.
async fn ask_until_there(
    client: &kube::Client,
    template: &Template,
    key: &rcgen::KeyPair,
    name: String,
) -> Result<csr::PendingCsr, csr::Error> {
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match csr::ask(client.clone(), template, key, Signer::Client, Some(name.clone())).await {
            Err(csr::Error::Create(source))
                if !matches!(&*source, kube::Error::Api(_)) && tokio::time::Instant::now() < end =>
            {
                tracing::info!(error = %source, "failed to connect to apiserver");
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            answer => return answer,
        }
    }
}
