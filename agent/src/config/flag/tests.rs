//! The command line, as upstream's library reads it.

use serde_json::json;

use super::*;

fn given(arguments: &[&str]) -> Result<ParsedFlags, Error> {
    parse(&arguments.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
}

#[test]
fn all_flags_of_upstream_are_there() {
    assert_eq!(all().len(), 149);
    assert_eq!(all().iter().filter(|flag| flag.deprecated.is_empty()).count(), 24);
}

#[test]
fn values_stand_behind_a_sign_or_a_space_and_underscores_are_dashes() {
    let found =
        given(&["--node_ip=10.0.0.1", "--root-dir", "/x", "--register-node=false", "-v", "4"]).unwrap();
    assert_eq!((found.text("node-ip").as_str(), found.text("root-dir").as_str()), ("10.0.0.1", "/x"));
    assert_eq!(found.value("register-node"), Some(json!(false)));
    assert_eq!(found.value("v"), Some(json!(4)));
    for form in [&["-v4"][..], &["-v=4"], &["--v=4"], &["--v", "4"]] {
        assert_eq!(given(form).unwrap().value("v"), Some(json!(4)), "{form:?}");
    }
    assert_eq!(given(&["--", "-v"]).unwrap().rest, ["-v"]);
    assert_eq!(given(&["a", "-v", "1", "-"]).unwrap().rest, ["a", "-"]);
}

#[test]
fn a_flag_without_a_value_is_on_and_takes_no_word_after_it() {
    let found = given(&["--seccomp-default", "false"]).unwrap();
    assert!(found.is_on("seccomp-default"));
    assert_eq!(found.rest, ["false"]);
}

#[test]
fn lists_and_maps_add_up_and_the_last_of_others_counts() {
    let found = given(&[
        "--cluster-dns=1.1.1.1,2.2.2.2",
        "--cluster-dns=3.3.3.3",
        "--node-labels=a=b,c",
        "--node-labels=d=e=f",
        "--eviction-hard=memory.available<1Gi,nodefs.available<10%",
        "--max-pods=1",
        "--max-pods=0x10",
        "--manifest-url-header=a:x,b:y",
        "--manifest-url-header=a:z",
        "--vmodule=file=3,x*=5",
    ])
    .unwrap();
    assert_eq!(found.value("cluster-dns"), Some(json!(["1.1.1.1", "2.2.2.2", "3.3.3.3"])));
    assert_eq!(found.value("node-labels"), Some(json!({"a": "b", "c": "", "d": "e=f"})));
    let thresholds = json!({"memory.available": "1Gi", "nodefs.available": "10%"});
    assert_eq!(found.value("eviction-hard"), Some(thresholds));
    assert_eq!(found.value("max-pods"), Some(json!(16)));
    assert_eq!(found.value("manifest-url-header"), Some(json!({"a": ["x", "z"], "b": ["y"]})));
    assert_eq!(
        found.value("vmodule"),
        Some(json!([{"filePattern": "file", "verbosity": 3}, {"filePattern": "x*", "verbosity": 5}]))
    );
}

#[test]
fn what_is_wrong_is_told_in_upstreams_words() {
    for (arguments, text) in [
        (&["--nonsense"][..], "unknown flag: --nonsense"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["--config"], "flag needs an argument: --config"),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["---x"], "bad flag syntax: ---x"),
        (
            &["--port=x"],
            "invalid argument \"x\" for \"--port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            &["--port=9999999999"],
            "invalid argument \"9999999999\" for \"--port\" flag: strconv.ParseInt: parsing \"9999999999\": value \
             out of range",
        ),
        (
            &["--register-node=maybe"],
            "invalid argument \"maybe\" for \"--register-node\" flag: strconv.ParseBool: parsing \"maybe\": invalid \
             syntax",
        ),
        (
            &["--sync-frequency=1"],
            "invalid argument \"1\" for \"--sync-frequency\" flag: time: missing unit in duration \"1\"",
        ),
        (&["--address=x"], "invalid argument \"x\" for \"--address\" flag: \"x\" is not a valid IP address"),
        (
            &["--kube-reserved=x"],
            "invalid argument \"x\" for \"--kube-reserved\" flag: malformed pair, expect string=string",
        ),
    ] {
        assert_eq!(given(arguments).unwrap_err().to_string(), text);
    }
}

#[test]
fn flags_that_should_not_be_used_are_told_and_work() {
    let found = given(&["--max-pods=3"]).unwrap();
    assert_eq!(
        found.deprecated,
        [
            "Flag --max-pods has been deprecated, This parameter should be set via the config file specified by the \
          Kubelet's --config flag. See https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/ for \
          more information."
        ]
    );
    assert!(given(&["--root-dir=/x"]).unwrap().deprecated.is_empty());
}

#[test]
fn taints_and_reserved_memory_have_a_syntax_of_their_own() {
    let found = given(&["--register-with-taints=a=b:NoSchedule,c:NoExecute"]).unwrap();
    assert_eq!(
        found.value("register-with-taints"),
        Some(
            json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}])
        )
    );
    assert!(given(&["--register-with-taints=a=b"]).is_err());
    assert!(given(&["--register-with-taints=a=b:Never"]).is_err());
    let found = given(&["--reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=2Gi"]).unwrap();
    assert_eq!(
        found.value("reserved-memory").unwrap()[1],
        json!({"numaNode": 1, "limits": {"memory": "2Gi"}})
    );
    assert!(given(&["--reserved-memory=x:memory=1Gi"]).is_err());
}
