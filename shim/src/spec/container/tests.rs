//! Tables of what a request and an image give together.

use super::*;

fn image() -> ImageConfig {
    ImageConfig {
        entrypoint: vec!["/entry".into()],
        cmd: vec!["default".into()],
        env: vec!["A=image".into(), "B=image".into()],
        ..ImageConfig::default()
    }
}

fn config(command: &[&str], args: &[&str]) -> cri::ContainerConfig {
    let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    cri::ContainerConfig { command: own(command), args: own(args), ..cri::ContainerConfig::default() }
}

#[test]
fn command_and_args_replace_entrypoint_and_cmd_as_kubernetes_documents() {
    for (request, expected) in [
        (config(&[], &[]), vec!["/entry", "default"]),
        (config(&[], &["arg"]), vec!["/entry", "arg"]),
        (config(&["/own"], &[]), vec!["/own"]),
        (config(&["/own"], &["arg"]), vec!["/own", "arg"]),
    ] {
        assert_eq!(command(&request, &image()).unwrap(), expected);
    }
    assert!(matches!(command(&config(&[], &[]), &ImageConfig::default()), Err(Error::NoCommand(_))));
}

#[test]
fn the_requests_variables_replace_the_images_and_home_is_never_missing() {
    let mut request = config(&[], &[]);
    request.envs.push(cri::KeyValue { key: "B".into(), value: "request".into() });
    let env = environment(&request, &image(), "/root", "pod");
    assert_eq!(env.get(1..).unwrap(), [&b"HOME=/root"[..], b"HOSTNAME=pod", b"A=image", b"B=request"]);
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let mut escape = cri::ContainerConfig::default();
    escape.mounts.push(cri::Mount {
        container_path: "/a/../../b".into(),
        host_path: "/tmp".into(),
        ..cri::Mount::default()
    });
    assert!(matches!(
        check(&escape, &Wanted::Unconfined),
        Err(Error::Invalid { field: "mounts.container_path", .. })
    ));
}

#[test]
fn signals_are_known_by_name_and_number() {
    for (name, number) in [("", 15), ("SIGTERM", 15), ("quit", 3), ("9", 9), ("SIGRTMIN+3", 37)] {
        assert_eq!(signal(name), Ok(number));
    }
    let wanted = |signal: cri::Signal| cri::ContainerConfig {
        stop_signal: signal.into(),
        ..cri::ContainerConfig::default()
    };
    let image = ImageConfig { stop_signal: "SIGQUIT".into(), ..ImageConfig::default() };
    assert_eq!(stop_signal(&cri::ContainerConfig::default(), &image), Ok(3));
    assert_eq!(stop_signal(&wanted(cri::Signal::Sigusr1), &image), Ok(10));
    assert_eq!(stop_signal(&wanted(cri::Signal::Sigrtmaxminus2), &image), Ok(62));
    assert!(signal("SIGWHAT").is_err());
    assert!(signal("65").is_err());
}
