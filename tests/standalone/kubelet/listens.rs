//! Addresses and ports of a kubelet, as its file, its folder of files and its flags say.

use super::*;

/// Whether somebody accepts there.
fn is_open(at: &str) -> bool {
    TcpStream::connect(at).is_ok()
}

#[test]
fn a_kubelet_listens_where_its_files_say() -> Result<()> {
    place::require_own_namespaces()?;
    let node = Node::start()?;
    let roots = node.roots();
    let _shared = SharedRootMount(roots);
    // The port of 10250 is what a later file of the folder says; the flag for the address wins over all.
    let more = "port: 11249\nhealthzPort: 11248\nhealthzBindAddress: 127.0.0.8\n";
    let mut words = flags(roots, more)?;
    std::fs::create_dir(roots.path("conf.d"))?;
    let drop_in = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 11250\n\
                   readOnlyPort: 11255\naddress: 127.0.0.6\n";
    std::fs::write(roots.path("conf.d/10-ports.conf"), drop_in)?;
    words.push(format!("--config-dir={}", roots.path("conf.d").display()));
    words.push("--address=127.0.0.7".to_owned());
    let mut kubelet = Kubelet::start(roots, &words, &[])?;
    poll("the kubelet to listen", Duration::from_secs(60), || {
        let wanted = ["127.0.0.8:11248", "127.0.0.7:11250", "127.0.0.7:11255"];
        let closed: Vec<&str> = wanted.into_iter().filter(|at| !is_open(at)).collect();
        if closed.is_empty() { Ok(()) } else { Err(format!("closed: {closed:?}\n{}", kubelet.log())) }
    })?;
    for elsewhere in [
        "127.0.0.1:10248",
        "127.0.0.1:11248",
        "127.0.0.1:10250",
        "127.0.0.7:10250",
        "127.0.0.1:11250",
        "127.0.0.6:11250",
        "127.0.0.7:11249",
        "127.0.0.1:10255",
    ] {
        assert!(!is_open(elsewhere), "{elsewhere} is open");
    }
    kubelet.signal(Signal::TERM)?;
    assert!(kubelet.ends()?.success(), "{}", kubelet.log());

    // Without a server nobody is answered but those who ask for its health, and on the read-only port: upstream's
    // startKubelet opens that one whatever enableServer says.
    let words = flags(roots, "enableServer: false\nport: 11250\n")?;
    let kubelet = Kubelet::start(roots, &words, &[])?;
    healthy(&kubelet)?;
    poll("the read-only port to be open", Duration::from_secs(60), || {
        if is_open("127.0.0.1:10255") { Ok(()) } else { Err(kubelet.log()) }
    })?;
    assert!(!is_open("127.0.0.1:11250"), "the server's port is open");
    drop(kubelet);
    remove_kubepods(roots)
}
