//! `gantry images` and `gantry rmi`: what the runtime keeps, and giving it back. Owns the table and
//! the JSON form, with crictl's columns; never decides what may go. Called by main.

use std::process::ExitCode;

use anyhow::{Result, bail};
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::{Image, ImageSpec, ImageStatusRequest, ListImagesRequest, RemoveImageRequest};
use serde::Serialize;
use tonic::transport::Channel;

use crate::args::{ImagesArgs, ListFormat, RmiArgs};
use crate::image_store::ImageStore;
use crate::{output, runtime_client};

/// As long as crictl shows them.
const SHORT_ID: usize = 13;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonImage<'a> {
    id: &'a str,
    repo_tags: &'a [String],
    repo_digests: &'a [String],
    /// Bytes.
    size: u64,
    pinned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<i64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
}

/// Lists.
pub(crate) async fn images(args: ImagesArgs) -> Result<()> {
    let ImagesArgs { names, output: format, quiet, runtime, store } = args;
    let mut list = match ImageStore::find(&runtime, store).await? {
        Some(store) => {
            let mut client = runtime_client::images(store.channel());
            let answer = client.list_images(ListImagesRequest::default()).await;
            drop(client);
            store.close().await?;
            runtime_client::answer(answer)?.images
        }
        None => Vec::new(),
    };
    list.retain(|image| shown(image, &names));
    list.sort_by(|a, b| (&a.repo_tags, &a.id).cmp(&(&b.repo_tags, &b.id)));
    let text = match format {
        _ if quiet => list.iter().map(|image| format!("{}\n", image.id)).collect(),
        ListFormat::Table => table(&list, false),
        ListFormat::Wide => table(&list, true),
        ListFormat::Json => output::json(&list.iter().map(json).collect::<Vec<_>>())?,
        ListFormat::Yaml => output::yaml(&list.iter().map(json).collect::<Vec<_>>())?,
    };
    Ok(output::print(text.as_bytes())?)
}

/// Removes names, and images with their last one; goes on past those that can't be removed.
pub(crate) async fn rmi(args: RmiArgs) -> Result<ExitCode> {
    let RmiArgs { images, all, runtime, store } = args;
    let Some(store) = ImageStore::find(&runtime, store).await? else {
        images.iter().for_each(|name| output::say(&format!("error: remove image {name}: no such image")));
        return Ok(if images.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    let mut client = runtime_client::images(store.channel());
    let list = runtime_client::answer(client.list_images(ListImagesRequest::default()).await)?.images;
    let wanted = match all {
        true => list.iter().filter(|image| !image.pinned).map(|image| image.id.clone()).collect(),
        false => images,
    };
    let mut code = ExitCode::SUCCESS;
    for name in wanted {
        match remove(&mut client, &list, &name).await {
            Ok(line) => output::print(line.as_bytes())?,
            Err(error) => {
                output::say(&format!("error: remove image {name}: {error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    drop(client);
    store.close().await?;
    Ok(code)
}

/// By name or ID, or by what the ID alone of all images begins with.
async fn remove(client: &mut ImageServiceClient<Channel>, list: &[Image], name: &str) -> Result<String> {
    let spec = |image: &str| Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() });
    let ask = ImageStatusRequest { image: spec(name), verbose: false };
    let known = runtime_client::answer(client.image_status(ask).await)?.image;
    let (image, asked) = match known {
        Some(image) => (image, name.to_owned()),
        None => {
            let image = by_prefix(list, name)?;
            (image.clone(), image.id.clone())
        }
    };
    runtime_client::answer(client.remove_image(RemoveImageRequest { image: spec(&asked) }).await)?;
    Ok(removed_line(name, &image))
}

fn by_prefix<'a>(list: &'a [Image], prefix: &str) -> Result<&'a Image> {
    let digits = prefix.trim_start_matches("sha256:");
    let is_prefix = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let begins = |image: &&Image| is_prefix && image.id.trim_start_matches("sha256:").starts_with(digits);
    let mut found = list.iter().filter(begins);
    match (found.next(), found.count()) {
        (None, _) => bail!("no such image"),
        (Some(image), 0) => Ok(image),
        (Some(_), more) => bail!("the IDs of {} images begin with it: give more of its digits", more + 1),
    }
}

/// `removed reg/web:v1`; with an ID also the names that went with it.
fn removed_line(asked: &str, image: &Image) -> String {
    let by_id = !image.repo_tags.iter().chain(&image.repo_digests).any(|name| name == asked)
        && image.id.trim_start_matches("sha256:").starts_with(asked.trim_start_matches("sha256:"));
    let names = if image.repo_tags.is_empty() { &image.repo_digests } else { &image.repo_tags };
    if by_id && !names.is_empty() {
        format!("removed {} ({asked})\n", names.join(", "))
    } else {
        format!("removed {asked}\n")
    }
}

/// Whether it is one of those that were asked for: by its name with or without tag, by the end of its repository from a
/// slash on, as in `library/nginx` or `nginx`, or by what its ID begins with.
fn shown(image: &Image, names: &[String]) -> bool {
    let is = |asked: &String| {
        let of_name = |name: &String| {
            let repository = name.split('@').next().map_or("", |name| split_at_tag(name).0);
            [name.as_str(), repository].iter().any(|whole| {
                whole.strip_suffix(asked.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
            })
        };
        image.repo_tags.iter().chain(&image.repo_digests).any(of_name)
            || by_prefix(std::slice::from_ref(image), asked).is_ok()
    };
    names.is_empty() || names.iter().any(is)
}

fn table(list: &[Image], wide: bool) -> String {
    let mut header = vec!["IMAGE", "TAG", "IMAGE ID", "SIZE"];
    if wide {
        header.extend(["DIGEST", "PINNED"]);
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for image in list {
        let id: String = image.id.trim_start_matches("sha256:").chars().take(SHORT_ID).collect();
        let digest = image.repo_digests.first().and_then(|d| d.split_once('@')).map_or("<none>", |d| d.1);
        let mut names: Vec<(String, String)> = image.repo_tags.iter().map(|tag| split_tag(tag)).collect();
        if names.is_empty() {
            let repository = image.repo_digests.first().and_then(|d| d.split_once('@')).map(|d| d.0);
            names.push((repository.unwrap_or("<none>").to_owned(), "<none>".to_owned()));
        }
        for (name, tag) in names {
            let mut row = vec![name, tag, id.clone(), output::bytes(image.size)];
            if wide {
                row.extend([digest.to_owned(), image.pinned.to_string()]);
            }
            rows.push(row);
        }
    }
    output::table(&rows)
}

fn split_tag(name: &str) -> (String, String) {
    let (repository, tag) = split_at_tag(name);
    (repository.to_owned(), tag.unwrap_or("<none>").to_owned())
}

/// `host:5000/a/b:tag`: the colon after the last slash.
fn split_at_tag(name: &str) -> (&str, Option<&str>) {
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    match name.get(start..).and_then(|last| last.rfind(':')) {
        Some(colon) => {
            let (repository, tag) = name.split_at(start + colon);
            (repository, Some(tag.trim_start_matches(':')))
        }
        None => (name, None),
    }
}

fn json(image: &Image) -> JsonImage<'_> {
    JsonImage {
        id: &image.id,
        repo_tags: &image.repo_tags,
        repo_digests: &image.repo_digests,
        size: image.size,
        pinned: image.pinned,
        uid: image.uid.as_ref().map(|uid| uid.value),
        username: &image.username,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_what_its_id_alone_begins_with() {
        let image = |id: &str| Image { id: format!("sha256:{id}"), ..Image::default() };
        let list = [image("012345"), image("0129ff"), image("ab")];
        let id =
            |prefix: &str| by_prefix(&list, prefix).map(|image| image.id.clone()).map_err(|e| e.to_string());
        assert_eq!(id("0123"), Ok("sha256:012345".to_owned()));
        assert_eq!(id("sha256:a"), Ok("sha256:ab".to_owned()));
        let error = "the IDs of 2 images begin with it: give more of its digits".to_owned();
        assert_eq!(id("012"), Err(error));
        for none in ["", "sha256:", "ff", "web", "0123456"] {
            assert_eq!(id(none), Err("no such image".to_owned()), "{none}");
        }
    }

    #[test]
    fn images_are_listed_by_name_or_id() {
        let image = Image {
            id: "sha256:0123456789abcdef".into(),
            repo_tags: vec!["reg:5000/team/web:v1".into()],
            repo_digests: vec!["reg:5000/team/web@sha256:ff".into()],
            ..Image::default()
        };
        let shown =
            |names: &[&str]| shown(&image, &names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        for name in ["web", "team/web", "web:v1", "reg:5000/team/web", "reg:5000/team/web:v1", "0123"] {
            assert!(shown(&[name]) && shown(&["no", name]), "{name}");
        }
        assert!(shown(&[]));
        for name in ["eb", "v1", "web:v2", "team", "ff", ""] {
            assert!(!shown(&[name]), "{name}");
        }
    }

    #[test]
    fn an_image_is_removed_by_its_names() {
        let image = Image {
            id: "sha256:0123456789abcdef".into(),
            repo_tags: vec!["reg/web:v1".into(), "reg/web:v2".into()],
            ..Image::default()
        };
        let line = |asked: &str| removed_line(asked, &image);
        assert_eq!(line("reg/web:v1"), "removed reg/web:v1\n");
        assert_eq!(line("reg/web"), "removed reg/web\n");
        let id = "sha256:0123456789abcdef";
        assert_eq!(line(id), format!("removed reg/web:v1, reg/web:v2 ({id})\n"));
        assert_eq!(line("0123456789abc"), "removed reg/web:v1, reg/web:v2 (0123456789abc)\n");
        let bare = Image { id: id.into(), ..Image::default() };
        assert_eq!(removed_line(id, &bare), format!("removed {id}\n"));
    }

    #[test]
    fn one_row_for_each_name() {
        let image = Image {
            id: "sha256:0123456789abcdef".into(),
            repo_tags: vec!["127.0.0.1:5000/web:v1".into(), "docker.io/library/web:latest".into()],
            repo_digests: vec!["127.0.0.1:5000/web@sha256:ff".into()],
            size: 12_345_678,
            ..Image::default()
        };
        let bare = Image { id: "sha256:ee".into(), size: 10, ..Image::default() };
        let want = "\
IMAGE                   TAG      IMAGE ID        SIZE
127.0.0.1:5000/web      v1       0123456789abc   12.3MB
docker.io/library/web   latest   0123456789abc   12.3MB
<none>                  <none>   ee              10B
";
        assert_eq!(table(&[image, bare], false), want);
    }
}
