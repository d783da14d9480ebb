//! The files a sandbox gives its containers when the request does not bring its own: hostname,
//! hosts, resolv.conf. Owns their content and place. Called by `sandbox::run` and `container::create`.

#![expect(clippy::disallowed_methods, reason = "part of a sandbox that counts once its record is there")]

use std::fs;
use std::io;
use std::path::Path;

use gantry_proto::cri;

use super::run;
use crate::config::HOST_FILES;
use crate::error::Error;
use crate::spec::sandbox::SandboxSpec;

/// Writes all three.
pub(super) fn write(folder: &Path, spec: &SandboxSpec) -> Result<(), Error> {
    let host = |path: &str| match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(|source| Error::Files { what: "read", path: path.into(), source }),
    };
    let hostname = format!("{}\n", run::hostname(spec));
    let resolv = match &spec.dns {
        Some(dns) => resolv_conf(dns),
        None => host("/etc/resolv.conf")?,
    };
    for ((name, _), content) in HOST_FILES.iter().zip([hostname, host("/etc/hosts")?, resolv]) {
        let path = folder.join(name);
        fs::write(&path, content).map_err(|source| Error::Files {
            what: "write",
            path: path.clone(),
            source,
        })?;
        // Read by every user of the container, whatever this process's umask is.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .map_err(|source| Error::Files { what: "set the mode of", path, source })?;
    }
    Ok(())
}

fn resolv_conf(dns: &cri::DnsConfig) -> String {
    let mut lines = String::new();
    if !dns.searches.is_empty() {
        lines.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        lines.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        lines.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_the_lines_of_resolv_conf_5() {
        let dns = cri::DnsConfig {
            servers: vec!["10.96.0.10".into()],
            searches: vec!["default.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(resolv_conf(&dns), "search default.svc svc\nnameserver 10.96.0.10\noptions ndots:5\n");
    }
}
