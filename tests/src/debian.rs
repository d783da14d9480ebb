//! Images from Debian packages: real programs with their libraries, as a user's image has them.
//! Owns the packages' closure and cache; [`fetch`] asks apt, outside of the tests' namespaces, and
//! what makes images reads the cache alone. Never installs anything. Called by tests and xtask.

mod closure;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::image::{Image, Layer};

/// What the nginx image is made of; everything below them comes with them.
const NGINX: [&str; 2] = ["nginx", "nginx-common"];

const PAGE: &str = "nginx from Debian packages\n";

/// Passed to nginx in full: the package's own configuration has sites and modules.
const CONFIG: &str = "user www-data;
worker_processes 2;
daemon off;
pid /run/nginx.pid;
error_log /dev/stderr warn;
events { worker_connections 1024; }
http {
    access_log off;
    server {
        listen 80 default_server;
        root /srv/www;
        location = /health { return 204; }
    }
}
";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh
web:x:1000:1000::/:/bin/sh
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
";

const GROUP: &str = "root:x:0:\nweb:x:1000:\nextra:x:1234:web\nwww-data:x:33:\n";

/// Downloads what the images are made of, unless it is there.
///
/// # Errors
/// When apt does not know a package or cannot be reached.
pub fn fetch() -> Result<()> {
    closure::fetch("nginx", &NGINX, &folder())
}

/// nginx with its libraries, serving a page on port 80: busybox, libraries, nginx, configuration.
///
/// # Errors
/// When [`fetch`] has not been called.
pub fn nginx_image() -> Result<Image> {
    let scratch = tempfile::Builder::new().prefix("gantry-debian-").tempdir()?;
    let mut layers = vec![Layer::busybox()?];
    let archives = closure::list_cached("nginx", &folder())?;
    // Debian names a file NAME_VERSION_ARCH.deb.
    let (own, libraries): (Vec<_>, Vec<_>) = archives
        .into_iter()
        .partition(|path| NGINX.contains(&file_name(path).split('_').next().unwrap_or_default()));
    for (name, group) in [("libraries", libraries), ("nginx", own)] {
        ensure!(!group.is_empty(), "no package for the layer {name}");
        layers.push(unpack_layer(&group, &scratch.path().join(name))?);
    }
    layers.push(
        Layer::default()
            .dir("run", 0o755)
            .dir("var/lib/nginx", 0o755)
            .dir("var/log/nginx", 0o755)
            .file("etc/passwd", 0o644, PASSWD)
            .file("etc/group", 0o644, GROUP)
            .file("etc/nginx/nginx.conf", 0o644, CONFIG)
            .file("srv/www/index.html", 0o644, PAGE),
    );
    Ok(Image {
        layers,
        entrypoint: vec!["/usr/sbin/nginx".into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
        ..Image::default()
    })
}

/// The page at `/` of [`nginx_image`].
#[must_use]
pub fn nginx_page() -> &'static str {
    PAGE
}

/// Downloads packages and what they depend on, unless they are there, as the closure `name`.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_closure(name: &str, packages: &[&str]) -> Result<()> {
    closure::fetch(name, packages, &folder())
}

/// A closure that was fetched, as one layer.
///
/// # Errors
/// When it was not fetched.
pub fn closure_layer(name: &str) -> Result<Layer> {
    let scratch = tempfile::Builder::new().prefix("gantry-debian-").tempdir()?;
    unpack_layer(&closure::list_cached(name, &folder())?, scratch.path())
}

/// What a machine with systemd is made of, without udev: its daemon would come and go while tests look for leaks.
const SYSTEMD: [&str; 1] = ["systemd"];

/// Nothing that runs reads these.
const NOT_READ: [&str; 5] =
    ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/lib/udev/hwdb.d"];

/// A root file system with systemd, in an empty folder: packages unpacked and none configured.
///
/// # Errors
/// As [`fetch`].
pub fn systemd_tree(to: &Path) -> Result<()> {
    closure::fetch("systemd", &SYSTEMD, &folder())?;
    // Packages of this Debian still name both /bin and /usr/bin, and are one on the disk.
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::fs::create_dir_all(to.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), to.join(name))?;
    }
    for archive in closure::list_cached("systemd", &folder())? {
        let mut files = Command::new("dpkg-deb");
        let mut files = files.arg("--fsys-tarfile").arg(&archive).stdout(Stdio::piped()).spawn()?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--keep-directory-symlink", "--directory"]).arg(to);
        tar.stdin(files.stdout.take().context("the pipe of dpkg-deb")?);
        let extracted = tar.status().context("start tar")?;
        let read = files.wait().context("wait for dpkg-deb")?;
        ensure!(extracted.success() && read.success(), "unpack {}: {extracted}, {read}", archive.display());
    }
    for name in NOT_READ {
        match std::fs::remove_dir_all(to.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// criu and the libraries that it is linked with: what else the package wants is for its other programs.
const CRIU: [&str; 19] = [
    "criu",
    "libbsd0",
    "libffi8",
    "libgmp10",
    "libgnutls30",
    "libhogweed6",
    "libidn2-0",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnet1",
    "libnettle8",
    "libnftables1",
    "libnftnl11",
    "libnl-3-200",
    "libp11-kit0",
    "libprotobuf-c1",
    "libtasn1-6",
    "libunistring2",
];

/// A folder with criu, and with its libraries, as the packages have them.
///
/// # Errors
/// As [`fetch`].
pub fn criu_tree(to: &Path) -> Result<()> {
    closure::fetch_alone("criu", &CRIU, &folder())?;
    extract(&closure::list_cached("criu", &folder())?, to)?;
    for name in ["usr/share", "usr/lib/python3"] {
        match std::fs::remove_dir_all(to.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// An NFS server with `mount.nfs`, and their libraries that a host does not have.
const NFS: [&str; 11] = [
    "libcom-err2",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libnsl2",
    "libtirpc3",
    "libwrap0",
    "nfs-common",
    "nfs-kernel-server",
];

/// A folder with the programs of an NFS server and of those who mount its exports.
///
/// # Errors
/// As [`fetch`].
pub fn nfs_tree(to: &Path) -> Result<()> {
    closure::fetch_alone("nfs", &NFS, &folder())?;
    extract(&closure::list_cached("nfs", &folder())?, to)?;
    Ok(std::fs::remove_dir_all(to.join("usr/share"))?)
}

/// open-iscsi with udev, by whose links its disks are found, and their libraries that a host does not have.
const ISCSI: [&str; 4] = ["libisns0", "libopeniscsiusr", "open-iscsi", "udev"];

/// A folder with iscsid, iscsiadm and udevd.
///
/// # Errors
/// As [`fetch`].
pub fn iscsi_tree(to: &Path) -> Result<()> {
    closure::fetch_alone("iscsi", &ISCSI, &folder())?;
    extract(&closure::list_cached("iscsi", &folder())?, to)?;
    for name in ["usr/share", "lib/udev/hwdb.d"] {
        std::fs::remove_dir_all(to.join(name))?;
    }
    // The package has it as a link to what is at /bin in a whole system.
    let udevd = to.join("lib/systemd/systemd-udevd");
    std::fs::remove_file(&udevd)?;
    Ok(std::os::unix::fs::symlink("../../bin/udevadm", &udevd)?)
}

/// A folder with AppArmor's parser, and with what profiles include.
///
/// # Errors
/// As [`fetch`].
pub fn apparmor_tree(to: &Path) -> Result<()> {
    closure::fetch_alone("apparmor", &["apparmor"], &folder())?;
    extract(&closure::list_cached("apparmor", &folder())?, to)
}

/// Downloads packages without what they depend on, unless they are there, as the list `name`.
///
/// # Errors
/// As [`fetch`].
pub(crate) fn fetch_alone(name: &str, packages: &[&str]) -> Result<()> {
    closure::fetch_alone(name, packages, &folder())
}

/// The archives of a list that was fetched.
///
/// # Errors
/// When it was not fetched.
pub(crate) fn archives(name: &str) -> Result<Vec<PathBuf>> {
    closure::list_cached(name, &folder())
}

/// Extracts archives into a folder.
///
/// # Errors
/// When one is none.
pub(crate) fn extract(archives: &[PathBuf], to: &Path) -> Result<()> {
    for archive in archives {
        let status = Command::new("dpkg-deb")
            .arg("--extract")
            .args([archive, to])
            .stdin(Stdio::null())
            .status()
            .with_context(|| gantry_needs::remedy("dpkg-deb"))?;
        ensure!(status.success(), "dpkg-deb --extract {}: {status}", archive.display());
    }
    Ok(())
}

/// The closure that [`nginx_image`] is made of, for a machine that has no apt.
///
/// # Errors
/// When it was not fetched.
pub fn nginx_packages() -> Result<Vec<PathBuf>> {
    let mut files = closure::list_cached("nginx", &folder())?;
    files.push(folder().join("nginx.list"));
    Ok(files)
}

/// GANTRY_CACHE, else /var/cache/gantry, as xtask has it.
fn folder() -> PathBuf {
    let cache = std::env::var_os("GANTRY_CACHE").map_or_else(|| "/var/cache/gantry".into(), PathBuf::from);
    cache.join("debs")
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// One layer of several packages.
fn unpack_layer(archives: &[PathBuf], to: &Path) -> Result<Layer> {
    extract(archives, to)?;
    tree::layer(to)
}
