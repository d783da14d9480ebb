//! A cluster's certificates and the kubeconfigs that carry them. Owns the authorities and who gets which name; never
//! talks to anyone. Called by `cluster` once, before anything starts.
//!
//! Names are what the API server's authorisers look for: a node is `system:node:NAME` in `system:nodes`, a component its
//! own `system:` name, which the API server's own roles are bound to.

use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// What the certificates say about this cluster.
#[derive(Debug, Clone)]
pub(super) struct CertificateSubjects<'a> {
    pub(super) server: &'a str,
    pub(super) node: &'a str,
    pub(super) node_ip: IpAddr,
    /// Of the Service `kubernetes`.
    pub(super) service_ip: IpAddr,
}

/// The token in `bootstrap.conf`, as kubeadm writes them: id and secret.
pub(super) const BOOTSTRAP: (&str, &str) = ("gantry", "0123456789abcdef");

/// Users with a kubeconfig: file, common name, organisation.
fn users(node: &str) -> [(&'static str, String, &'static str); 4] {
    [
        ("admin", "kubernetes-admin".into(), "system:masters"),
        ("controller-manager", "system:kube-controller-manager".into(), ""),
        ("scheduler", "system:kube-scheduler".into(), ""),
        ("node", format!("system:node:{node}"), "system:nodes"),
    ]
}

/// Files below `pki` and `kubeconfig` of a folder.
#[derive(Debug)]
pub(super) struct Pki {
    folder: PathBuf,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Pki {
    /// Makes them all.
    pub(super) fn make(folder: &Path, facts: &CertificateSubjects<'_>) -> Result<Self> {
        let own = Self { folder: folder.to_owned() };
        for name in ["pki", "kubeconfig"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        let ca = own.authority("ca", "kubernetes")?;
        let front = own.authority("front-proxy-ca", "front-proxy")?;
        let (node, service) = (facts.node_ip.to_string(), facts.service_ip.to_string());
        let server = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "127.0.0.1",
            super::kubeadm::NAME,
            &node,
            &service,
        ];
        own.server(&ca, "apiserver", "kube-apiserver", &server)?;
        own.server(&ca, "kubelet", facts.node, &[facts.node, &node])?;
        own.client(&ca, "apiserver-kubelet-client", "kube-apiserver-kubelet-client", "")?;
        own.client(&front, "front-proxy-client", "front-proxy-client", "")?;
        // What service accounts' tokens are signed with.
        let accounts = KeyPair::generate()?;
        secret(&own.pki("sa.key"), &accounts.serialize_pem())?;
        std::fs::write(own.pki("sa.pub"), accounts.public_key_pem())?;
        for (file, name, organisation) in users(facts.node) {
            let (certificate, key) = own.client(&ca, file, &name, organisation)?;
            let credentials = format!(
                "    client-certificate-data: {}\n    client-key-data: {}\n",
                base64(certificate.as_bytes()),
                base64(key.as_bytes())
            );
            secret(&own.kubeconfig(file), &kubeconfig(facts.server, &ca.pem, &name, &credentials))?;
        }
        let token = format!("    token: {}.{}\n", BOOTSTRAP.0, BOOTSTRAP.1);
        let bootstrap = kubeconfig(facts.server, &ca.pem, "bootstrap", &token);
        secret(&own.kubeconfig("bootstrap"), &bootstrap)?;
        Ok(own)
    }

    /// A file of the kind that kubeadm keeps in `/etc/kubernetes/pki`.
    pub(super) fn pki(&self, name: &str) -> PathBuf {
        self.folder.join("pki").join(name)
    }

    /// A user's kubeconfig.
    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.folder.join("kubeconfig").join(format!("{user}.conf"))
    }

    fn authority(&self, file: &str, name: &str) -> Result<Authority> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        years(&mut params);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        secret(&self.pki(&format!("{file}.key")), &key.serialize_pem())?;
        std::fs::write(self.pki(&format!("{file}.crt")), &pem)?;
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }

    fn server(&self, by: &Authority, file: &str, name: &str, names: &[&str]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names)?;
        self.issue(by, file, name, "", params, ExtendedKeyUsagePurpose::ServerAuth).map(drop)
    }

    fn client(&self, by: &Authority, file: &str, name: &str, organisation: &str) -> Result<(String, String)> {
        let params = CertificateParams::new(Vec::new())?;
        self.issue(by, file, name, organisation, params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        by: &Authority,
        file: &str,
        name: &str,
        organisation: &str,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        params.distinguished_name.push(DnType::CommonName, name);
        if !organisation.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        years(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &by.issuer).with_context(|| format!("sign {name}"))?.pem();
        let key = key.serialize_pem();
        std::fs::write(self.pki(&format!("{file}.crt")), &certificate)?;
        secret(&self.pki(&format!("{file}.key")), &key)?;
        Ok((certificate, key))
    }
}

/// rcgen's own years reach from 1975 to 4096, which no rotation timer expects.
fn years(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2024, 1, 1);
    params.not_after = rcgen::date_time_ymd(2044, 1, 1);
}

fn kubeconfig(server: &str, ca: &str, user: &str, credentials: &str) -> String {
    let ca = base64(ca.as_bytes());
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: gantry
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
{credentials}contexts:
- name: {user}@gantry
  context:
    cluster: gantry
    user: {user}
current-context: {user}@gantry
"
    )
}

/// A file for root's eyes.
fn secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let at = || format!("write {}", path.display());
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(at)?;
    file.write_all(text.as_bytes()).with_context(at)
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_own_name_and_group_and_only_root_reads_its_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let facts = CertificateSubjects {
            server: "https://10.0.0.1:6443",
            node: "n1",
            node_ip: "10.0.0.1".parse().unwrap(),
            service_ip: "10.96.0.1".parse().unwrap(),
        };
        let pki = Pki::make(folder.path(), &facts).unwrap();
        let text = std::fs::read_to_string(pki.kubeconfig("node")).unwrap();
        assert!(text.contains("server: https://10.0.0.1:6443"));
        assert_eq!(users("n1")[3].1, "system:node:n1");
        assert_eq!(users("n1")[3].2, "system:nodes");
        for private in [pki.kubeconfig("node"), pki.pki("ca.key"), pki.pki("sa.key"), pki.pki("node.key")] {
            assert_eq!(std::fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
