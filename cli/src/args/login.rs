//! Flags of `gantry login` and `gantry logout`. Owns their help; never acts. Part of [`super`].

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// A text that no message and no log repeats.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The registry, as in images' names.
    #[arg(value_name = "REGISTRY", default_value = "docker.io")]
    pub(crate) registry: String,
    /// The user's name; asked for on a terminal when not given.
    #[arg(short, long, value_name = "USER")]
    pub(crate) username: Option<String>,
    /// The password; asked for on a terminal when not given. Other users can read it in the list of
    /// processes: --password-stdin is safer.
    #[arg(short, long, value_name = "PASSWORD")]
    pub(crate) password: Option<Secret>,
    /// Read the password from standard input.
    #[arg(long, requires = "username", conflicts_with = "password")]
    pub(crate) password_stdin: bool,
    /// Docker's config.json to keep the login in; $HOME/.docker/config.json when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// How to reach registries: mirrors, certificates, plain HTTP; HOST/hosts.toml as containerd reads it.
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd/certs.d")]
    pub(crate) registry_hosts_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// The registry, as in images' names.
    #[arg(value_name = "REGISTRY", default_value = "docker.io")]
    pub(crate) registry: String,
    /// Docker's config.json that the login is kept in; $HOME/.docker/config.json when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
}
