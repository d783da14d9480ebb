//! A place of one's own on this host: mount, network, pid and cgroup namespaces, a cgroup subtree
//! in every hierarchy below this process's own cgroup, a temporary folder. Owns making it and
//! taking it away, and says what kept it from going; never looks inside (that is `leakcheck`).
//! Called by every tier that needs root.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::isolation;
use gantry_tests::leakcheck::{self, HARNESS};
use gantry_tests::place;

use crate::sh;

/// Both halves are environment, so that an error shows the command and not them.
const SCRIPT: &str = r#"eval "$GANTRY_CELL_OUTSIDE""#;

/// Enters the subtree in each hierarchy, so that the cgroup namespace begins there. `0` is the
/// writer itself. unshare ignores ^C and SIGTERM: without setpriv it would outlive this program, with all that is in here.
const OUTSIDE: &str = r#"for folder in $GANTRY_CELL_CGROUPS; do echo 0 >"$folder/cgroup.procs" || exit 125; done
exec setpriv --pdeathsig KILL -- unshare --cgroup --mount --net --pid --fork --mount-proc --kill-child --propagation private \
    sh -c 'eval "$GANTRY_CELL_INSIDE"' sh "$@""#;

/// Pid 1 of the namespaces is this shell: it reaps monitors whose runtime has ended.
const LAST: &str = r#"set +e
unset GANTRY_CELL_CGROUPS GANTRY_CELL_OUTSIDE GANTRY_CELL_INSIDE
ip link set lo up && "$@"; exit $?"#;

/// Runs this program again in a place of its own that is fit for a cluster, with those words. Gantry's programs are in
/// `programs`.
pub(crate) fn run_again(words: impl IntoIterator<Item = OsString>, programs: &Path) -> Result<()> {
    let cell = Cell::new()?;
    let [unshare, init @ ..] = isolation::INIT;
    let mut command = cell.command(Path::new(unshare))?;
    command.args(init).arg(std::env::current_exe().context("find this program")?).args(words);
    let ran = sh::run(command.env(place::BIN_DIR, programs));
    ran.and(cell.close())
}

/// One hierarchy and our folder in it.
#[derive(Debug)]
struct Hierarchy {
    point: PathBuf,
    /// As `mount -o` takes them; empty for v2.
    controllers: String,
    folder: PathBuf,
}

/// The place.
#[derive(Debug)]
pub(crate) struct Cell {
    hierarchies: Vec<Hierarchy>,
    temporary: tempfile::TempDir,
    hidden: Vec<String>,
}

impl Cell {
    /// Makes the cgroups and the temporary folder.
    pub(crate) fn new() -> Result<Cell> {
        // Short: paths of sockets below it have 107 bytes.
        let temporary = tempfile::Builder::new().prefix("gantry-").tempdir()?;
        // Containerd's pods with users of their own pass through here.
        std::fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let name = temporary.path().file_name().context("a folder without a name")?.to_owned();
        let own = std::fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        let mut cell = Cell { hierarchies: Vec::new(), temporary, hidden: Vec::new() };
        for mount in leakcheck::mounts()?.into_iter().filter(|mount| mount.kind.starts_with("cgroup")) {
            if cell.hierarchies.iter().any(|known| known.point == mount.point) {
                continue;
            }
            let (controllers, inside) = own_cgroup(&own, &mount.options, mount.kind == "cgroup2")
                .with_context(|| format!("no line of /proc/self/cgroup is {}", mount.point.display()))?;
            let parent = mount.point.join(inside.trim_start_matches('/'));
            let folder = parent.join(&name);
            std::fs::create_dir(&folder).with_context(|| format!("make cgroup {}", folder.display()))?;
            cell.hierarchies.push(Hierarchy { point: mount.point, controllers, folder });
            // A v1 cpuset is born empty, and takes no process before it has both.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                copy_if_there(&parent, &cell.hierarchies, file)?;
            }
        }
        if cell.hierarchies.is_empty() {
            bail!("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup");
        }
        Ok(cell)
    }

    /// Folders of this host that are empty in here, in memory: cells beside this one would see each other's files.
    pub(crate) fn hide(&mut self, folders: &[&str]) {
        self.hidden.extend(folders.iter().map(|folder| (*folder).to_owned()));
    }

    /// A command in here; killed with its parent.
    pub(crate) fn command(&self, program: &Path) -> Result<Command> {
        let folders: Vec<_> = self.hierarchies.iter().map(|it| it.folder.to_string_lossy()).collect();
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh"])
            .arg(program)
            .env("GANTRY_CELL_CGROUPS", folders.join(" "))
            .env("GANTRY_CELL_OUTSIDE", OUTSIDE)
            .env("GANTRY_CELL_INSIDE", self.inside())
            .env("TMPDIR", self.temporary.path())
            // What this machine's own Gantry is told is nothing to tests.
            .env("GANTRY_CONFIG", "")
            .env(place::OWN_CGROUPS, "1")
            .env(place::OUTER_NETNS, place::own_netns()?);
        Ok(command)
    }

    /// Mounts every hierarchy anew, now that its root is ours, in the place of the old one (over it
    /// is EBUSY; the host's own mount is another namespace's); and goes into a leaf, since a v2
    /// cgroup with processes can have no controlled children.
    fn inside(&self) -> String {
        let mut script = String::from("set -e\n");
        for folder in &self.hidden {
            script.push_str(&format!("mount -t tmpfs none {folder}\n"));
        }
        for Hierarchy { point, controllers, .. } in &self.hierarchies {
            let point = point.display();
            let kind = if controllers.is_empty() { "cgroup2" } else { "cgroup" };
            let options = match controllers.as_str() {
                "" => String::new(),
                named if named.starts_with("name=") => format!("-o none,{named}"),
                controllers => format!("-o {controllers}"),
            };
            script.push_str(&format!(
                "umount {point}\nmount -t {kind} {options} {kind} {point}\nmkdir {point}/{HARNESS}\n\
                 for file in cpuset.cpus cpuset.mems; do [ ! -e {point}/$file ] || \
                 cat {point}/$file >{point}/{HARNESS}/$file; done\n\
                 echo 0 >{point}/{HARNESS}/cgroup.procs\n"
            ));
        }
        script.push_str(LAST);
        script
    }

    /// Takes it away: an error names what is still there.
    pub(crate) fn close(mut self) -> Result<()> {
        let mut left = self.remove_cgroups();
        let temporary = self.temporary.path().to_owned();
        for entry in std::fs::read_dir(&temporary).with_context(|| temporary.display().to_string())? {
            left.push(format!("file {}", entry?.path().display()));
        }
        // Closed by hand, since a drop would hide that it failed.
        if let Err(error) = std::mem::replace(&mut self.temporary, tempfile::tempdir()?).close() {
            left.push(format!("folder {}: {error}", temporary.display()));
        }
        if !left.is_empty() {
            bail!("left behind:\n  {}", left.join("\n  "));
        }
        Ok(())
    }

    /// Each folder and what is in it; all but the tests' leaf is returned as left behind.
    fn remove_cgroups(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for Hierarchy { folder, .. } in self.hierarchies.drain(..) {
            remove_cgroup(&folder, &folder.join(HARNESS), &mut left);
        }
        left
    }
}

/// Children first: nobody lives in there any more, the cell's processes ended with it.
fn remove_cgroup(folder: &Path, leaf: &Path, left: &mut Vec<String>) {
    let children = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for child in children.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if child != leaf {
            left.push(format!("cgroup {}", child.display()));
        }
        remove_cgroup(&child, leaf, left);
    }
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            left.push(format!("cgroup {}: {error}", folder.display()));
        }
        _ => {}
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // Where it was not closed there is an error to be shown already.
        self.remove_cgroups();
    }
}

/// Of `/proc/self/cgroup`: what names the hierarchy mounted with these options, and where we are.
fn own_cgroup(own: &str, options: &str, unified: bool) -> Option<(String, String)> {
    own.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let same = if unified {
            number == "0" && controllers.is_empty()
        } else {
            let mut named = controllers.split(',');
            !controllers.is_empty() && named.all(|name| options.split(',').any(|option| option == name))
        };
        same.then(|| (controllers.to_owned(), path.to_owned()))
    })
}

fn copy_if_there(parent: &Path, made: &[Hierarchy], file: &str) -> Result<()> {
    let Some(Hierarchy { folder, .. }) = made.last() else { return Ok(()) };
    // v2 inherits what is not set.
    if !parent.join(file).is_file() || folder.join("cgroup.controllers").is_file() {
        return Ok(());
    }
    let at = || format!("copy {} of {}", file, parent.display());
    let value = std::fs::read(parent.join(file)).with_context(at)?;
    std::fs::write(folder.join(file), value).with_context(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_is_found_by_its_controllers() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/u\n";
        let found = |options, unified| own_cgroup(own, options, unified);
        assert_eq!(found("rw,memory", false), Some(("memory".into(), "/a/b".into())));
        assert_eq!(found("rw,cpu,cpuacct", false), Some(("cpu,cpuacct".into(), "/c".into())));
        assert_eq!(found("rw,xattr,name=systemd", false), Some(("name=systemd".into(), "/".into())));
        assert_eq!(found("rw,nsdelegate", true), Some((String::new(), "/u".into())));
        assert_eq!(found("rw,pids", false), None);
    }
}
