//! A container's environment as written: values that are known only when it is created stay
//! references. Owns the types; never looks anything up (that is `pod::configure`). Pure.

/// One entry of `env`, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Where its value comes from.
    pub value: EnvValue,
}

/// Where a variable's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// As written; `$(NAME)` is expanded from the variables before it.
    Literal(String),
    /// A key of a ConfigMap.
    ConfigMapKey(KeyRef),
    /// A key of a Secret.
    SecretKey(KeyRef),
    /// A field of the pod, such as `metadata.name` or `status.podIP`.
    Field(String),
    /// A container's request or limit.
    Resource(ResourceRef),
    /// A line of a file that an init container has left.
    FileKey(FileKeyRef),
}

/// One variable of a file in an emptyDir of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKeyRef {
    /// Of the pod.
    pub volume: String,
    /// Below the volume's root, without `..`.
    pub path: String,
    /// The variable's name in the file.
    pub key: String,
    /// Whether it may be missing.
    pub optional: bool,
}

/// One key of a ConfigMap or Secret of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// Of the object.
    pub name: String,
    /// In its data.
    pub key: String,
    /// Whether the object and the key may be missing.
    pub optional: bool,
}

/// As in ResourceFieldSelector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRef {
    /// The container meant; its own when empty.
    pub container: String,
    /// `limits.cpu`, `requests.memory` and the like.
    pub resource: String,
    /// The unit it is printed in, in thousandths; 1000 is one core or one byte.
    pub divisor_milli: i64,
}

/// One entry of `envFrom`, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFrom {
    /// Put before each key.
    pub prefix: String,
    /// Whose keys.
    pub source: EnvFromSource,
    /// Whether the object may be missing.
    pub optional: bool,
}

/// Whose keys become variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvFromSource {
    /// A ConfigMap of that name.
    ConfigMap(String),
    /// A Secret of that name.
    Secret(String),
}
