//! Where a sandbox's cgroups are, by driver and by what the caller asked for. Pure. Owns the two forms of
//! `cgroup_parent` and the refusal of the other driver's; never makes one. Called by `sandbox::run`.

use gantry_systemd as systemd;

use crate::error::cgroup_placement::Error;
use crate::store::record::Scope;

/// What the record keeps.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CgroupPlacement {
    /// The pod's cgroup.
    pub(super) parent: String,
    /// Ours to limit and remove.
    pub(super) owned: bool,
    pub(super) scope: Option<Scope>,
}

/// Below the caller's path, or below the root.
pub(super) fn of_cgroupfs(root: &str, asked: &str, id: &str) -> Result<CgroupPlacement, Error> {
    let asked = asked.trim_end_matches('/');
    if asked.ends_with(".slice") {
        return Err(Error::Slice(asked.to_owned()));
    }
    let owned = asked.is_empty();
    let parent = if owned { format!("{root}/{id}") } else { asked.to_owned() };
    Ok(CgroupPlacement { parent, owned, scope: None })
}

/// A scope in the caller's slice, or in the one that the root stands for. The slice is the caller's to
/// limit; a pod of ours is limited by a cgroup in the scope, where systemd writes nothing.
pub(super) fn of_systemd(root: &str, asked: &str, id: &str) -> Result<CgroupPlacement, Error> {
    let bad = |source| Error::NoSlice { parent: asked.to_owned(), source };
    let slice = match asked {
        "" => own_slice(root),
        asked => systemd::of_path(asked).map_err(bad)?.to_owned(),
    };
    let folder = systemd::expand(&slice).map_err(bad)?;
    let unit = format!("gantry-{id}.scope");
    let path = format!("{}/{unit}", folder.trim_end_matches('/'));
    let owned = asked.is_empty();
    let parent = if owned { format!("{path}/{id}") } else { folder };
    Ok(CgroupPlacement { parent, owned, scope: Some(Scope { unit, slice, path, is_anothers: false }) })
}

/// `/a/b-c` is `a-b_c.slice`.
pub(super) fn own_slice(root: &str) -> String {
    systemd::name(root.split('/'))
}

/// Where that one's cgroup is.
pub(super) fn own_folder(root: &str) -> Result<String, Error> {
    systemd::expand(&own_slice(root)).map_err(|source| Error::NoSlice { parent: root.to_owned(), source })
}

/// Slices that are not a runtime's: those that systemd itself has, and the root of all.
pub(crate) fn is_reserved(root: &str) -> bool {
    matches!(
        own_slice(root).as_str(),
        "-.slice" | "init.slice" | "machine.slice" | "system.slice" | "user.slice"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt_5_1_a_pod_is_one_scope_in_the_slice_that_the_caller_names() {
        for asked in [
            "kubepods-burstable-podx_1.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_1.slice",
        ] {
            let placement = of_systemd("/gantry", asked, "ab").unwrap();
            let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_1.slice";
            assert_eq!((placement.parent.as_str(), placement.owned), (slice, false));
            let scope = placement.scope.unwrap();
            assert_eq!(scope.unit, "gantry-ab.scope");
            assert_eq!(scope.slice, "kubepods-burstable-podx_1.slice");
            assert_eq!(scope.path, format!("{slice}/gantry-ab.scope"));
        }
        let placement = of_systemd("/gantry/test-1", "", "ab").unwrap();
        let path = "/gantry.slice/gantry-test_1.slice/gantry-ab.scope";
        assert_eq!((placement.parent, placement.owned), (format!("{path}/ab"), true));
        let placement = of_systemd("/gantry", "-.slice", "ab").unwrap();
        assert_eq!(placement.parent, "/", "statistics read it");
        assert_eq!(placement.scope.unwrap().path, "/gantry-ab.scope");
        assert_eq!(own_folder("/gantry/test-1").unwrap(), "/gantry.slice/gantry-test_1.slice");
    }

    #[test]
    fn slices_of_systemds_own_are_no_root_of_ours() {
        for root in ["/", "//", "/system", "/user/", "/machine", "/init"] {
            assert!(is_reserved(root), "{root}");
        }
        assert!(!is_reserved("/gantry") && !is_reserved("/system/gantry"));
    }

    #[test]
    fn a_parent_of_the_other_driver_is_refused_by_name() {
        for bad in ["/kubepods/podx", "kubepods", "/podx.slice/x", "/a-b.slice"] {
            let told = of_systemd("/gantry", bad, "ab").unwrap_err().to_string();
            assert!(told.contains("driver is systemd") && told.contains(bad), "{told}");
        }
        for bad in ["kubepods-podx.slice", "/kubepods.slice/kubepods-podx.slice/"] {
            let told = of_cgroupfs("/gantry", bad, "ab").unwrap_err().to_string();
            assert!(told.contains("driver is cgroupfs") && told.contains("slice of systemd"), "{told}");
        }
        let placement = of_cgroupfs("/gantry", "/kubepods/podx/", "ab").unwrap();
        assert_eq!(placement, CgroupPlacement { parent: "/kubepods/podx".into(), owned: false, scope: None });
        assert_eq!(of_cgroupfs("/gantry", "", "ab").unwrap().parent, "/gantry/ab");
    }
}
