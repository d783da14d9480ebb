//! Changing docker's `config.json`: a login is kept in it, and taken out again. Owns the entry of one registry;
//! what else the file holds stays, also what is not known here. Runs no credential helper. Called by the command
//! line, through `login`.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Value, json};

use super::names;
use crate::image::registry::login::Domain;

/// Why the file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file is there and can't be read.
    #[error("read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// No JSON of its form; the text is not repeated: it may hold passwords.
    #[error(
        "{path} is not a docker config.json ({detail}): correct it, or name another file with --registry-auth-file",
        path = path.display()
    )]
    Form { path: PathBuf, detail: String },
    /// Docker keeps the password elsewhere, by a program that is not run here.
    #[error(
        "{path} leaves {domain} to the credential helper {helper:?} ({key}), which gantry does not run: \
         take it out of {key}, or name another file with --registry-auth-file",
        path = path.display()
    )]
    Helper { path: PathBuf, domain: String, helper: String, key: &'static str },
    /// The file could not be replaced; what was there stays.
    #[error("write {path}", path = path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The file as it was read.
struct ConfigFile<'a> {
    path: &'a Path,
    all: Map<String, Value>,
}

/// Whether a login at `domain` can be kept in the file.
///
/// # Errors
/// Why not.
pub fn check_file(path: &Path, domain: &Domain) -> Result<(), EditError> {
    ConfigFile::read(path)?.refuse_helper(domain)
}

/// Keeps a login at `domain`, in place of an earlier one. Makes the file if there is none.
///
/// # Errors
/// [`EditError`]; the file is as it was then.
pub fn remember(path: &Path, domain: &Domain, username: &str, password: &str) -> Result<(), EditError> {
    let mut file = ConfigFile::read(path)?;
    file.refuse_helper(domain)?;
    let auth = STANDARD.encode(format!("{username}:{password}"));
    let auths = file.auths()?;
    auths.retain(|own, _| names(own) != domain.as_str());
    auths.insert(entry_name(domain), json!({"auth": auth}));
    file.write()
}

/// Takes all logins at `domain` out of the file; false when there are none.
///
/// # Errors
/// [`EditError`]; the file is as it was then.
pub fn forget(path: &Path, domain: &Domain) -> Result<bool, EditError> {
    let mut file = ConfigFile::read(path)?;
    let auths = file.auths()?;
    let is_meant = |own: &str| names(own) == domain.as_str();
    let is_kept_here = |entry: &Value| entry.as_object().is_some_and(|entry| !entry.is_empty());
    if !auths.iter().any(|(own, entry)| is_meant(own) && is_kept_here(entry)) {
        // The password, if there is one, is with the helper: it must be asked to forget it.
        file.refuse_helper(domain)?;
    }
    let auths = file.auths()?;
    let before = auths.len();
    auths.retain(|own, _| !is_meant(own));
    if auths.len() == before {
        return Ok(false);
    }
    file.write().map(|()| true)
}

/// Docker's own name of the entry.
fn entry_name(domain: &Domain) -> String {
    match domain.as_str() {
        "docker.io" => "https://index.docker.io/v1/".to_owned(),
        host => host.to_owned(),
    }
}

impl<'a> ConfigFile<'a> {
    /// A file that is absent or empty has nothing.
    fn read(path: &'a Path) -> Result<Self, EditError> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|source| EditError::Read { path: path.to_owned(), source })?,
        };
        if text.trim_ascii().is_empty() {
            return Ok(Self { path, all: Map::new() });
        }
        let all = serde_json::from_slice(&text);
        let all = all.map_err(|error| form(path, format!("line {}", error.line())))?;
        Ok(Self { path, all })
    }

    fn auths(&mut self) -> Result<&mut Map<String, Value>, EditError> {
        let auths = self.all.entry("auths").or_insert(Value::Null);
        if auths.is_null() {
            *auths = Value::Object(Map::new());
        }
        auths.as_object_mut().ok_or_else(|| form(self.path, "\"auths\" is no object".to_owned()))
    }

    fn refuse_helper(&self, domain: &Domain) -> Result<(), EditError> {
        let refuse = |helper: &Value, key| {
            let helper = match helper {
                Value::String(helper) => helper.clone(),
                _ => return Err(form(self.path, format!("{key:?} names no program"))),
            };
            let path = self.path.to_owned();
            Err(EditError::Helper { path, domain: domain.to_string(), helper, key })
        };
        let helpers = self.all.get("credHelpers").unwrap_or(&Value::Null);
        if !helpers.is_object() && !helpers.is_null() {
            return Err(form(self.path, "\"credHelpers\" is no object".to_owned()));
        }
        let mut helpers = helpers.as_object().into_iter().flatten();
        if let Some((_, helper)) = helpers.find(|(own, _)| names(own) == domain.as_str()) {
            return refuse(helper, "credHelpers");
        }
        match self.all.get("credsStore") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(store)) if store.is_empty() => Ok(()),
            Some(store) => refuse(store, "credsStore"),
        }
    }

    fn write(&self) -> Result<(), EditError> {
        let fail = |source| EditError::Write { path: self.path.to_owned(), source };
        // With tabs, as docker writes it.
        let mut text = Vec::new();
        let mut form = serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"\t"));
        self.all.serialize(&mut form).map_err(|error| fail(error.into()))?;
        // A link stays one: the file that it leads to is meant.
        let target = match fs::canonicalize(self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.path.to_owned(),
            target => target.map_err(fail)?,
        };
        let before = fs::metadata(&target).ok();
        if let Some(folder) = target.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fail)?;
        }
        gantry_base::files::replace(&target, &text, 0o600).map_err(fail)?;
        // Root may have changed the file of a user, by sudo: it is still the user's.
        let now = fs::metadata(&target).map_err(fail)?;
        match before {
            Some(before) if (before.uid(), before.gid()) != (now.uid(), now.gid()) => {
                chown(&target, Some(before.uid()), Some(before.gid())).map_err(fail)
            }
            _ => Ok(()),
        }
    }
}

fn form(path: &Path, detail: String) -> EditError {
    EditError::Form { path: path.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::image::auth::Credentials;
    use crate::image::registry::docker_config::credentials;

    fn domain(text: &str) -> Domain {
        text.parse().unwrap()
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn value(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_login_is_found_by_the_next_pull_and_gone_after_the_logout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/config.json");
        for host in ["reg.example:5000", "docker.io"] {
            remember(&path, &domain(host), "user", "pa:ss\"ö").unwrap();
            let basic = Credentials::Basic { username: "user".into(), password: "pa:ss\"ö".into() };
            assert_eq!(credentials(&path, host).unwrap(), basic);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(value(&path)["auths"].get("https://index.docker.io/v1/").is_some(), "docker finds it, too");
        assert!(forget(&path, &domain("docker.io")).unwrap());
        assert!(!forget(&path, &domain("docker.io")).unwrap());
        assert_eq!(credentials(&path, "docker.io").unwrap(), Credentials::Anonymous);
        assert_ne!(credentials(&path, "reg.example:5000").unwrap(), Credentials::Anonymous);
        assert!(!forget(&folder.path().join("absent"), &domain("a.io")).unwrap());
    }

    #[test]
    fn everything_else_in_the_file_stays() {
        let (_folder, path) = file(
            r#"{"HttpHeaders": {"A": ["b"]}, "n": 18446744073709551615, "f": 0.1, "credHelpers": {"x.io": "y"},
                "auths": {"https://reg.io/v1/": {"auth": "b2xkOm9sZA=="}, "other.io": {"auth": "eA==", "email": "e"}}}"#,
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let before = value(&path);
        remember(&path, &domain("reg.io"), "u", "p").unwrap();
        let mut want = before;
        want["auths"] = json!({"other.io": {"auth": "eA==", "email": "e"}, "reg.io": {"auth": "dTpw"}});
        assert_eq!(value(&path), want, "an entry of another spelling would win over the new one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        forget(&path, &domain("reg.io")).unwrap();
        want["auths"] = json!({"other.io": {"auth": "eA==", "email": "e"}});
        assert_eq!(value(&path), want);
    }

    #[test]
    fn a_file_of_another_form_is_left_alone_and_its_text_not_repeated() {
        for text in [
            r#"{"auths": {"reg.io": {"password": hunter2}}}"#,
            r#"["hunter2"]"#,
            r#"{"auths": ["hunter2"]}"#,
            r#"{"auths": {}, "credHelpers": "hunter2"}"#,
            r#"{"auths": {}} hunter2"#,
        ] {
            let (_folder, path) = file(text);
            for error in [
                remember(&path, &domain("reg.io"), "u", "p").unwrap_err(),
                forget(&path, &domain("reg.io")).unwrap_err(),
            ] {
                assert!(matches!(error, EditError::Form { .. }), "{text}: {error:?}");
                assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let (_folder, path) = file(" \n");
        remember(&path, &domain("reg.io"), "u", "p").unwrap();
    }

    #[test]
    fn what_a_helper_keeps_is_left_to_it() {
        for (text, host, key) in [
            (r#"{"credHelpers": {"https://aws.io/v1/": "ecr"}}"#, "aws.io", "credHelpers"),
            (r#"{"credsStore": "desktop", "auths": {"aws.io": {}}}"#, "aws.io", "credsStore"),
        ] {
            let (_folder, path) = file(text);
            for error in [
                check_file(&path, &domain(host)).unwrap_err(),
                remember(&path, &domain(host), "u", "p").unwrap_err(),
                forget(&path, &domain(host)).unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(text.contains(key) && text.contains("--registry-auth-file"), "{text}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let (_folder, path) = file(r#"{"credHelpers": {"aws.io": "ecr"}, "credsStore": ""}"#);
        check_file(&path, &domain("reg.io")).unwrap();
        let (_folder, path) = file(r#"{"credsStore": "desktop", "auths": {"reg.io": {"auth": "dTpw"}}}"#);
        assert!(forget(&path, &domain("reg.io")).unwrap(), "it is in the file, so it is taken out");
    }

    #[test]
    fn the_file_behind_a_link_is_changed_and_stays_its_owners() {
        let (folder, path) = file("{}");
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(&path, Some(1234), Some(1235)).unwrap();
        }
        remember(&link, &domain("reg.io"), "u", "p").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let now = fs::metadata(&path).unwrap();
        assert!(value(&path)["auths"].get("reg.io").is_some());
        assert!(!root || (now.uid(), now.gid()) == (1234, 1235));
    }
}
