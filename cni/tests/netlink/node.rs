//! A node and its pods for the tests of this folder: real namespaces, real links, a chain of their own. Owns what it
//! makes and takes it away again. Never touches the host's namespaces: it refuses to run there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_cni::chain::{self, Attachment, Conflist, Dirs};
use gantry_cni::{CniResult, netns};
use serde_json::{Value, json};

/// A node with a network of its own, and pods in their namespaces.
pub(crate) struct TestNode {
    pub(crate) root: tempfile::TempDir,
    pub(crate) dirs: Dirs,
    pub(crate) list: Conflist,
    pub(crate) bridge: String,
}

impl TestNode {
    /// The bridge's name must be no other test's: they share the host side.
    pub(crate) fn new(bridge: &str, ipam: Value) -> TestNode {
        TestNode::with(bridge, json!({"isDefaultGateway": true, "hairpinMode": true, "ipam": ipam}), &[])
    }

    /// One of plugin `bridge` with these fields, and more plugins behind it. The network has the bridge's name: rules
    /// and leases of tests must not meet.
    pub(crate) fn with(bridge: &str, fields: Value, more: &[Value]) -> TestNode {
        let mut first = json!({"type": "bridge", "bridge": bridge});
        first.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut plugins = vec![first];
        plugins.extend_from_slice(more);
        TestNode::of(bridge, &json!({"cniVersion": "1.1.0", "name": bridge, "plugins": plugins}))
    }

    /// One of any plugins.
    pub(crate) fn of(bridge: &str, list: &Value) -> TestNode {
        refuse_the_hosts_namespaces();
        let root = tempfile::tempdir().unwrap();
        TestNode {
            dirs: Dirs {
                data_dir: root.path().join("networks"),
                cache_dir: root.path().join("results"),
                bin_dir: PathBuf::from("/nonexistent"),
                prefer_external: false,
            },
            root,
            list: Conflist::parse(&list.to_string(), "test").unwrap(),
            bridge: bridge.into(),
        }
    }

    pub(crate) fn pod(&self, id: &str) -> Pod<'_> {
        let netns = netns::create(&self.root.path().join("netns"), id).unwrap();
        Pod {
            node: self,
            id: format!("{}-{id}", self.bridge),
            name: id.into(),
            netns,
            capabilities: BTreeMap::new(),
        }
    }

    pub(crate) fn bridge_mac(&self) -> String {
        let sys = Sysfs::mount();
        std::fs::read_to_string(sys.path().join(format!("class/net/{}/address", self.bridge))).unwrap()
    }

    /// Number of the bridge's ports.
    pub(crate) fn ports(&self) -> usize {
        let sys = Sysfs::mount();
        sys.path().join(format!("class/net/{}/brif", self.bridge)).read_dir().map_or(0, Iterator::count)
    }

    pub(crate) fn leases(&self) -> BTreeSet<String> {
        let names = |dir: PathBuf| dir.read_dir().into_iter().flatten().map(|e| e.unwrap().file_name());
        names(self.dirs.data_dir.join(self.list.name()))
            .map(|name| name.into_string().unwrap())
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect()
    }

    pub(crate) fn cached_count(&self) -> usize {
        self.dirs.cache_dir.read_dir().map_or(0, Iterator::count)
    }

    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.leases(), BTreeSet::new(), "leases");
        assert_eq!(self.cached_count(), 0, "cached results");
        assert_eq!(self.ports(), 0, "ports of {}", self.bridge);
        chain::remove_idle(&self.list, &self.dirs).unwrap();
        assert!(!links(Path::new("/proc/self/ns/net")).contains(&self.bridge), "the bridge");
    }
}

pub(crate) struct Pod<'a> {
    pub(crate) node: &'a TestNode,
    /// The container's id: no other test's, since names of links follow from it.
    pub(crate) id: String,
    name: String,
    pub(crate) netns: PathBuf,
    pub(crate) capabilities: BTreeMap<String, Value>,
}

impl Pod<'_> {
    /// Asks for ports: `{"hostPort": …}`.
    pub(crate) fn map(mut self, mappings: Value) -> Self {
        self.capabilities.insert("portMappings".into(), mappings);
        self
    }

    pub(crate) fn add_as(&self, ifname: &str) -> Result<CniResult, chain::Error> {
        chain::add(&self.node.list, &self.attachment(ifname), &self.node.dirs, &mut |_, _, _| {})
    }

    pub(crate) fn add(&self) -> CniResult {
        self.add_as("eth0").unwrap_or_else(|error| panic!("{}", explain(&error)))
    }

    pub(crate) fn del(&self) {
        let deleted = chain::del(&self.node.list, &self.attachment("eth0"), &self.node.dirs);
        deleted.unwrap_or_else(|error| panic!("{}", explain(&error)));
    }

    pub(crate) fn attachment<'a>(&'a self, ifname: &'a str) -> Attachment<'a> {
        let args = vec![
            ("K8S_POD_NAMESPACE".to_owned(), "test".to_owned()),
            ("K8S_POD_NAME".to_owned(), self.name.clone()),
        ];
        Attachment {
            container_id: &self.id,
            netns: &self.netns,
            ifname,
            args,
            capabilities: self.capabilities.clone(),
        }
    }

    pub(crate) fn listen(&self, address: IpAddr) -> (TcpListener, SocketAddr) {
        // The socket stays in the namespace it was opened in.
        let listener = netns::run(&self.netns, || TcpListener::bind((address, 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// CHECK.
    pub(crate) fn check(&self) -> Result<(), chain::Error> {
        chain::check(&self.node.list, &self.attachment("eth0"), &self.node.dirs)
    }

    #[track_caller]
    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        netns::run(&self.netns, || TcpStream::connect_timeout(&to, Duration::from_secs(10)))
            .unwrap()
            .unwrap_or_else(|error| panic!("{} cannot connect to {to}: {error}", self.id))
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let removed = netns::remove(&self.netns);
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

/// sysfs shows the links of the namespace in which it was mounted, so it is mounted anew.
pub(crate) struct Sysfs(tempfile::TempDir);

impl Sysfs {
    pub(crate) fn mount() -> Sysfs {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("sysfs", dir.path(), "sysfs", rustix::mount::MountFlags::RDONLY, None).unwrap();
        Sysfs(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    }
}

/// Compares with the first process, by what can be read of it without `CAP_SYS_PTRACE` and all of its capabilities:
/// `/proc/1/ns` cannot. A namespace's `net/dev` has an inode number of its own, and a mount's id is in one namespace.
pub(crate) fn refuse_the_hosts_namespaces() {
    const REMEDY: &str = "must not run there; as root, run \
        `unshare --mount --net --propagation private cargo test -p gantry-cni --test netlink`";
    let net = |process: &str| std::fs::metadata(format!("/proc/{process}/net/dev")).unwrap().ino();
    assert_ne!(
        net("1"),
        net("self"),
        "this is the host's network namespace, which these tests change: they {REMEDY}"
    );
    let mount = |process: &str| {
        let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
        mounts.split_whitespace().next().map(str::to_owned)
    };
    assert_ne!(
        mount("1"),
        mount("self"),
        "this is the host's mount namespace, which these tests change: they {REMEDY}"
    );
}

pub(crate) fn links(netns: &Path) -> BTreeSet<String> {
    let table = netns::run(netns, || std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap().unwrap();
    table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(crate) fn address(result: &CniResult, index: usize) -> IpAddr {
    result.ips[index].address.addr()
}
