//! Which images are looked after: of the others every pod may use what is on the node. Pure: owns
//! upstream's four policies and the patterns of images. Called by [`crate::images::pull_manager`].

use gantry_model::names::parse_image;
use gantry_model::names::without_tag;

/// imagePullCredentialsVerificationPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// No image.
    NeverVerify,
    /// Those that this kubelet has pulled.
    NeverVerifyPreloadedImages,
    /// All but these.
    NeverVerifyAllowlistedImages(Allowed),
    /// All.
    AlwaysVerify,
}

/// Images of preloadedImagesVerificationAllowlist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    names: Vec<String>,
    /// With a slash at the end.
    prefixes: Vec<String>,
}

impl Policy {
    /// By its name and the list that belongs to it.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn new(name: &str, allowed: &[String]) -> Result<Self, String> {
        match name {
            "NeverVerify" => Ok(Self::NeverVerify),
            "NeverVerifyPreloadedImages" => Ok(Self::NeverVerifyPreloadedImages),
            "NeverVerifyAllowlistedImages" => Allowed::new(allowed).map(Self::NeverVerifyAllowlistedImages),
            "AlwaysVerify" => Ok(Self::AlwaysVerify),
            other => Err(format!("unknown image pull credential verification policy: {other}")),
        }
    }

    /// Whether a pod has to show that it may use the image.
    pub(crate) fn verifies(&self, image: &str, pulled_here: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_here,
            Self::NeverVerifyAllowlistedImages(allowed) => !allowed.has(image),
            Self::AlwaysVerify => true,
        }
    }
}

impl Allowed {
    fn new(patterns: &[String]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for pattern in patterns {
            if pattern.trim() != pattern {
                return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
            }
            let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
            let plain = prefix.unwrap_or(pattern);
            if plain.is_empty() {
                return Err(format!("the supplied pattern is too short: {pattern}"));
            }
            if plain.contains('*') {
                return Err(format!(
                    "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
                ));
            }
            match prefix {
                Some("/") => return Err("at least registry hostname is required".to_owned()),
                Some(prefix) => allowed.prefixes.push(prefix.to_owned()),
                None => allowed.names.push(name(pattern)?),
            }
        }
        Ok(allowed)
    }

    fn has(&self, image: &str) -> bool {
        let name = without_tag(image);
        self.names.iter().any(|known| known == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }
}

fn name(pattern: &str) -> Result<String, String> {
    if parse_image(pattern).is_none() {
        return Err("failed to parse as an image name: invalid reference format".to_owned());
    }
    if without_tag(pattern) != pattern {
        return Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"));
    }
    Ok(pattern.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_policies() {
        let list = ["reg.io/base".to_owned(), "reg.io/team/*".to_owned()];
        for (name, image, pulled_here, verified) in [
            ("NeverVerify", "a", true, false),
            ("NeverVerifyPreloadedImages", "a", true, true),
            ("NeverVerifyPreloadedImages", "a", false, false),
            ("NeverVerifyAllowlistedImages", "reg.io/base:v1", true, false),
            ("NeverVerifyAllowlistedImages", "reg.io/team/web@sha256:0", true, false),
            ("NeverVerifyAllowlistedImages", "reg.io/team", false, true),
            ("NeverVerifyAllowlistedImages", "reg.io/base/more", false, true),
            ("AlwaysVerify", "a", false, true),
        ] {
            let policy = Policy::new(name, &list).unwrap();
            assert_eq!(policy.verifies(image, pulled_here), verified, "{name} {image} {pulled_here}");
        }
        assert!(Policy::new("Sometimes", &[]).is_err());
    }

    #[test]
    fn patterns_are_judged_as_upstream() {
        let told =
            |pattern: &str| Policy::new("NeverVerifyAllowlistedImages", &[pattern.to_owned()]).unwrap_err();
        assert_eq!(told(" a"), "leading/trailing spaces are not allowed:  a");
        assert_eq!(told(""), "the supplied pattern is too short: ");
        assert_eq!(
            told("reg.io/*/a"),
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: reg.io/*/a"
        );
        assert_eq!(told("/*"), "at least registry hostname is required");
        assert_eq!(told("a:v1"), "neither tag nor digest is accepted in an image reference: a:v1");
        assert_eq!(told("A"), "failed to parse as an image name: invalid reference format");
    }
}
