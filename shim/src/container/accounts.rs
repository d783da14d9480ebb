//! The passwd and group files of an image as its container would see them. Owns finding them through the
//! layers; parses nothing. A hostile image may have a link or a device there: links stay inside the
//! image, and only a plain file is read. Called by `create`, on a blocking thread.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::merged;
use crate::error::Error;
use crate::spec::user::Accounts;
use gantry_monitor::within;

/// More than any account file of an image; no more is read.
const MAX_ACCOUNTS: u64 = 4 << 20;
const PASSWD: &str = "passwd";
const GROUP: &str = "group";
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What the layers say without being put together.
enum LayerText {
    Text(String),
    Nothing,
    /// A link on the way: where it leads may be in any layer.
    Link,
}

/// Reads both files. `mount_point` is an empty folder, used only inside a mount namespace that is gone
/// when this returns.
///
/// # Errors
/// When a layer can't be read, or the layers not be put together.
pub(super) fn read(layers_dir: &Path, layers: &[String], mount_point: &Path) -> Result<Accounts, Error> {
    let plain = |name| {
        plain(layers_dir, layers, name)
            .map_err(|errno| wrap("read the accounts of the image in", layers_dir, errno))
    };
    match (plain(PASSWD)?, plain(GROUP)?) {
        (LayerText::Link, _) | (_, LayerText::Link) => read_merged(layers_dir, layers, mount_point),
        (passwd, group) => Ok(Accounts { passwd: passwd.text(), group: group.text() }),
    }
}

impl LayerText {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Nothing | Self::Link => String::new(),
        }
    }
}

/// `etc/NAME` of the topmost layer that has or hides it, as overlayfs would show it.
fn plain(layers_dir: &Path, layers: &[String], name: &str) -> Result<LayerText, Errno> {
    for layer in layers {
        let root = rustix::fs::open(layers_dir.join(layer), FOLDER, Mode::empty())?;
        let Some(found) = stat(&root, "etc")? else { continue };
        match kind(&found) {
            FileType::Directory => {}
            FileType::Symlink => return Ok(LayerText::Link),
            // A whiteout, or something in its place.
            _ => return Ok(LayerText::Nothing),
        }
        let etc = rustix::fs::openat(&root, "etc", FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        match stat(&etc, name)?.map(|found| kind(&found)) {
            None if is_opaque(&etc) => return Ok(LayerText::Nothing),
            None => {}
            Some(FileType::Symlink) => return Ok(LayerText::Link),
            Some(_) => {
                return contents(&etc, name).map(|text| text.map_or(LayerText::Nothing, LayerText::Text));
            }
        }
    }
    Ok(LayerText::Nothing)
}

/// Both files through a read-only overlay of the layers.
fn read_merged(layers_dir: &Path, layers: &[String], mount_point: &Path) -> Result<Accounts, Error> {
    let job = |root: &OwnedFd| {
        let text = |name: &str| {
            let path = PathBuf::from("etc").join(name);
            match within::open(root, &path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::empty()) {
                Ok(found) => file(&found).map(Option::unwrap_or_default),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(String::new()),
                Err(errno) => Err(errno),
            }
        };
        Ok(Accounts { passwd: text(PASSWD)?, group: text(GROUP)? })
    };
    merged::with(layers_dir, layers, mount_point, job)
}

fn contents(folder: &OwnedFd, name: &str) -> Result<Option<String>, Errno> {
    file(&rustix::fs::openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// None when it is no plain file: a device or a pipe is not even opened.
fn file(found: &OwnedFd) -> Result<Option<String>, Errno> {
    if kind(&rustix::fs::fstat(found)?) != FileType::RegularFile {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
        .and_then(|file| file.take(MAX_ACCOUNTS).read_to_end(&mut bytes))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn stat(folder: &OwnedFd, name: &str) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        found => found.map(Some),
    }
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn is_opaque(folder: &OwnedFd) -> bool {
    let mut value = [0_u8; 1];
    rustix::fs::fgetxattr(folder, "trusted.overlay.opaque", &mut value) == Ok(1) && value == *b"y"
}

fn wrap(what: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Files { what, path: path.to_owned(), source: io::Error::from(errno) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use gantry_shim_testing::require_root;

    struct Layers(tempfile::TempDir);

    impl Layers {
        fn new() -> Self {
            require_root();
            let layers = Self(tempfile::tempdir().unwrap());
            layers.folder("target");
            layers
        }

        fn folder(&self, path: &str) {
            fs::create_dir_all(self.0.path().join(path)).unwrap();
        }

        fn file(&self, path: &str, text: &str) {
            self.folder(Path::new(path).parent().unwrap().to_str().unwrap());
            fs::write(self.0.path().join(path), text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            self.folder(Path::new(path).parent().unwrap().to_str().unwrap());
            symlink(to, self.0.path().join(path)).unwrap();
        }

        fn whiteout(&self, path: &str) {
            let mode = Mode::empty();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                self.0.path().join(path),
                FileType::CharacterDevice,
                mode,
                0,
            )
            .unwrap();
        }

        /// The passwd of the layers, topmost first.
        fn passwd(&self, layers: &[&str]) -> String {
            let layers: Vec<String> = layers.iter().map(|layer| (*layer).to_owned()).collect();
            read(self.0.path(), &layers, &self.0.path().join("target")).unwrap().passwd
        }
    }

    #[test]
    fn the_topmost_file_counts_and_a_whiteout_hides_it() {
        let layers = Layers::new();
        layers.file("base/etc/passwd", "base");
        layers.file("other/etc/group", "other");
        layers.folder("gone/etc");
        layers.whiteout("gone/etc/passwd");
        layers.folder("wiped");
        layers.whiteout("wiped/etc");
        assert_eq!(layers.passwd(&["other", "base"]), "base");
        assert_eq!(layers.passwd(&["gone", "base"]), "");
        assert_eq!(layers.passwd(&["wiped", "base"]), "");
        assert_eq!(layers.passwd(&[]), "");
    }

    #[test]
    fn links_are_followed_into_other_layers_and_never_out_of_the_image() {
        let layers = Layers::new();
        layers.file("base/usr/lib/accounts/passwd", "through");
        layers.link("link/etc/passwd", "../usr/lib/accounts/passwd");
        assert_eq!(layers.passwd(&["link", "base"]), "through");
        layers.link("folder/etc", "/usr/lib/accounts");
        assert_eq!(layers.passwd(&["folder", "base"]), "through");
        layers.link("out/etc/passwd", "/proc/self/root/etc/passwd");
        layers.link("up/etc/passwd", "../../../../../../etc/passwd");
        for out in ["out", "up"] {
            assert_eq!(layers.passwd(&[out, "base"]), "", "{out}");
            assert_eq!(layers.passwd(&[out]), "", "{out}");
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(layers.0.path().to_str().unwrap()), "nothing stays mounted");
    }

    #[test]
    fn a_device_in_the_place_of_a_file_is_not_opened() {
        let layers = Layers::new();
        layers.folder("pipe/etc");
        let path = layers.0.path().join("pipe/etc/passwd");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(layers.passwd(&["pipe"]), "");
    }
}
