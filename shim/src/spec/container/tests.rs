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
    let env = environment(&request, &image(), "/root", "pod").unwrap();
    assert_eq!(env.get(1..).unwrap(), [&b"HOME=/root"[..], b"HOSTNAME=pod", b"A=image", b"B=request"]);
}

#[test]
fn a_name_ends_at_its_first_sign_and_is_there_once() {
    let mut request = config(&[], &[]);
    request.envs.push(cri::KeyValue { key: "PATH=/a".into(), value: "/b".into() });
    let env = environment(&request, &ImageConfig::default(), "/root", "pod").unwrap();
    assert_eq!(env, [&b"PATH=/a=/b"[..], b"HOME=/root", b"HOSTNAME=pod"]);
}

#[test]
fn more_variables_than_a_program_can_be_given_are_refused_and_repeats_count_once() {
    let env = |count: usize| (0..count).map(|at| format!("V{at}=x")).collect::<Vec<_>>();
    let of = |env| environment(&config(&[], &[]), &ImageConfig { env, ..image() }, "/", "pod");
    // PATH, HOME and HOSTNAME are three.
    assert_eq!(of(env(65_533)).unwrap().len(), 65_536);
    let refused = of(env(65_534)).unwrap_err();
    assert_eq!(refused.to_string(), "65537 environment variables: at most 65536 are possible");
    // As many as a config of 8 MiB holds, in no time that anybody would notice.
    let many = (0..1_000_000).map(|at| format!("V{at}=x")).collect();
    assert!(of(many).is_err());
    let repeated = vec!["A=1".to_owned(); 200_000];
    assert_eq!(of(repeated).unwrap().len(), 4);
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let mounted = |container_path: &str, host_path: &str| {
        let (container_path, host_path) = (container_path.to_owned(), host_path.to_owned());
        let mount = cri::Mount { container_path, host_path, ..cri::Mount::default() };
        let config = cri::ContainerConfig { mounts: vec![mount], ..cri::ContainerConfig::default() };
        match check(&config, &Handlers::new(), &SeccompChoice::Unconfined) {
            Err(Error::Invalid { field, .. }) => Some(field),
            other => other.map(|_| None).unwrap(),
        }
    };
    assert_eq!(mounted("b", "/tmp"), Some("mounts.container_path"));
    assert_eq!(mounted("/b\0", "/tmp"), Some("mounts.container_path"));
    assert_eq!(mounted("/b", "/tmp/.."), Some("mounts.host_path"));
    // The API lets it through, and containerd cleans it.
    assert_eq!(mounted("/a/../../b", "/tmp"), None);
}

#[test]
fn a_mount_stays_below_the_root_by_its_words() {
    let from = cri::Mount { container_path: "/a/../../b/./c/".into(), ..cri::Mount::default() };
    assert_eq!(mount(&from, None).unwrap().destination, "/b/c");
}

#[test]
fn a_mount_of_an_image_is_read_only_has_no_host_path_and_leads_downwards() {
    let mount = cri::Mount {
        container_path: "/data".into(),
        readonly: true,
        image: Some(cri::ImageSpec { image: "data".into(), ..Default::default() }),
        image_sub_path: "a/b".into(),
        ..Default::default()
    };
    let checked = |change: &dyn Fn(&mut cri::Mount)| {
        let mut mount = mount.clone();
        change(&mut mount);
        let config = cri::ContainerConfig { mounts: vec![mount], ..Default::default() };
        check(&config, &Handlers::new(), &SeccompChoice::Unconfined).map(drop)
    };
    assert_eq!(checked(&|_| {}), Ok(()));
    let field = |change: &dyn Fn(&mut cri::Mount)| match checked(change).unwrap_err() {
        Error::Invalid { field, .. } | Error::Missing(field) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&|mount| mount.host_path = "/tmp".into()), "mounts.host_path");
    assert_eq!(field(&|mount| mount.readonly = false), "mounts.readonly");
    let shared = cri::MountPropagation::PropagationBidirectional;
    assert_eq!(field(&|mount| mount.propagation = shared.into()), "mounts.propagation");
    assert_eq!(field(&|mount| mount.image = Some(Default::default())), "mounts.image.image");
    for path in ["/a", "../a", "a/../..", "a\0"] {
        assert_eq!(field(&|mount| mount.image_sub_path = path.into()), "mounts.image_sub_path", "{path:?}");
    }
    let without = |mount: &mut cri::Mount| (mount.image, mount.host_path) = (None, "/tmp".into());
    assert_eq!(field(&without), "mounts.image_sub_path");
}

#[test]
fn an_image_of_an_unknown_handler_is_refused_by_name() {
    let image = cri::ImageSpec { runtime_handler: "kata".into(), ..cri::ImageSpec::default() };
    let config = cri::ContainerConfig { image: Some(image), ..cri::ContainerConfig::default() };
    let refused = check(&config, &Handlers::new(), &SeccompChoice::Unconfined).unwrap_err();
    assert!(matches!(refused, Error::Invalid { field: "image.runtime_handler", .. }), "{refused:?}");
}

#[test]
fn an_oom_score_that_the_kernel_does_not_take_is_refused_with_its_value() {
    for score in [-1000, 0, 1000] {
        assert_eq!(oom_score(score).map(i64::from), Ok(score));
    }
    for score in [-1001, 1001, i64::MAX] {
        let refused = oom_score(score).unwrap_err();
        let Error::Invalid { field: "resources.oom_score_adj", value, .. } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(value, score.to_string());
    }
}

#[test]
fn a_limit_of_no_huge_pages_is_a_limit() {
    let none = cri::HugepageLimit { page_size: "2MB".into(), limit: 0 };
    let limits = cri::LinuxContainerResources { hugepage_limits: vec![none], ..Default::default() };
    assert_eq!(resources(&limits).hugepages, [("2MB".to_owned(), 0)].into());
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
