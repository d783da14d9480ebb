package main

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AuthConfig in all its forms: basic ones against a registry with a password file (--private-image),
// tokens against a front of this program's own before the registry of --image.
func init() {
	register("image/auth-username-and-password", func(t *T) {
		t.private(&cri.AuthConfig{Username: t.PrivateUser, Password: t.PrivatePassword}, true)
	})
	register("image/auth-base64", func(t *T) {
		both := base64.StdEncoding.EncodeToString([]byte(t.PrivateUser + ":" + t.PrivatePassword))
		t.private(&cri.AuthConfig{Auth: both}, true)
	})
	register("image/auth-base64-that-is-none", func(t *T) {
		t.private(&cri.AuthConfig{Auth: "%%%"}, false)
	})
	register("image/auth-none", func(t *T) { t.private(nil, false) })
	register("image/auth-empty", func(t *T) { t.private(&cri.AuthConfig{}, false) })
	register("image/auth-wrong-password", func(t *T) {
		t.private(&cri.AuthConfig{Username: t.PrivateUser, Password: t.PrivatePassword + "x"}, false)
	})
	register("image/auth-is-not-remembered", func(t *T) {
		auth := &cri.AuthConfig{Username: t.PrivateUser, Password: t.PrivatePassword}
		t.private(auth, true)
		t.private(nil, false)
	})
	register("image/auth-server-address", func(t *T) {
		host := host(t.PrivateImage)
		for address, works := range map[string]bool{
			"http://" + host:          true,
			"https://" + host + "/v1": true,
			// Of another registry: this one must not see it.
			"http://127.0.0.1:1":          false,
			"https://index.docker.io/v1/": false,
		} {
			t.private(&cri.AuthConfig{Username: t.PrivateUser, Password: t.PrivatePassword, ServerAddress: address}, works)
		}
	})
	register("image/auth-identity-token", func(t *T) {
		front := t.front()
		front.refresh = "the-refresh-token"
		t.pullThrough(front, &cri.AuthConfig{IdentityToken: "the-refresh-token"}, true)
		t.pullThrough(front, &cri.AuthConfig{IdentityToken: "another"}, false)
		t.pullThrough(front, nil, false)
	})
	register("image/auth-password-at-the-token-server", func(t *T) {
		front := t.front()
		front.user, front.password = "web", "word"
		t.pullThrough(front, &cri.AuthConfig{Username: "web", Password: "word"}, true)
		t.pullThrough(front, &cri.AuthConfig{Username: "web", Password: "other"}, false)
		front.forbid(t, "word")
	})
	register("image/auth-registry-token", func(t *T) {
		front := t.front()
		err := t.tryThrough(front, &cri.AuthConfig{RegistryToken: bearer})
		if err != nil && front.seen() == 0 {
			t.Skipf("a registry token is passed over")
		}
		t.OK("PullImage", err)
		t.remove(front.image)
		t.pullThrough(front, &cri.AuthConfig{RegistryToken: "another"}, false)
	})
	register("image/pull-by-tag-and-digest", func(t *T) {
		image := t.Sibling("other:1")
		id := t.Pull(image)
		digest := t.imageStatus(image).RepoDigests[0]
		t.remove(image)
		both := image + digest[strings.Index(digest, "@"):]
		Equal(t, "id", t.Pull(both), id)
		status := t.imageStatus(both)
		t.True(status != nil, "no image by tag and digest")
		Equal(t, "id by tag and digest", status.Id, id)
		t.True(has(status.RepoDigests, digest), "digests: %v", status.RepoDigests)
		// What was verified is the digest: a tag beside it names nothing.
		Equal(t, "tags", strings.Join(status.RepoTags, " "), "")
		t.remove(both)
		t.True(t.imageStatus(digest) == nil, "the image is still there by digest")
	})
	register("image/pull-by-a-digest-that-is-another-s", func(t *T) {
		wrong := repository(t.Sibling("other:1")) + "@sha256:" + strings.Repeat("0", 64)
		_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: wrong}})
		t.True(err != nil, "a digest that nothing has was pulled")
	})
	register("image/aliases-of-two-registries", func(t *T) {
		one := t.Sibling("twin:1")
		other := privateSibling(t.PrivateImage, "twin:1")
		auth := &cri.AuthConfig{Username: t.PrivateUser, Password: t.PrivatePassword}
		t.remove(one)
		id := t.Pull(one)
		answer, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: other}, Auth: auth})
		t.OK("PullImage", err)
		Equal(t, "id by the other registry", answer.ImageRef, id)
		image := t.imageStatus(id)
		t.True(has(image.RepoTags, one) && has(image.RepoTags, other), "tags: %v", image.RepoTags)
		Equal(t, "digests", len(image.RepoDigests), 2)
		for _, digest := range image.RepoDigests {
			Equal(t, "id by "+digest, t.imageStatus(digest).Id, id)
		}
		count := 0
		for _, each := range t.images("") {
			if each.Id == id {
				count++
			}
		}
		Equal(t, "entries in the list", count, 1)
		t.remove(other)
		t.True(t.imageStatus(one) == nil, "the first name is still there")
	})
	register("image/pull-takes-what-a-kubelet-sends", func(t *T) {
		config := t.podConfig("pull")
		answer, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{SandboxConfig: config,
			Image: &cri.ImageSpec{Image: t.Image, UserSpecifiedImage: "as-the-user-says", Annotations: map[string]string{"a": "b"}}})
		t.OK("PullImage", err)
		Equal(t, "id", t.imageStatus(t.Image).Id, answer.ImageRef)
	})
	register("image/pinned", func(t *T) {
		if t.PinnedImage == "" {
			t.Skipf("no --pinned-image")
		}
		id := t.Pull(t.PinnedImage)
		t.True(t.imageStatus(t.PinnedImage).Pinned && t.imageStatus(id).Pinned, "a pinned image is not told as one")
		t.Pull(t.Image)
		for _, image := range t.images("") {
			if image.Id == id {
				t.True(image.Pinned, "the list does not tell it")
			}
		}
		t.True(!t.imageStatus(t.Image).Pinned, "an image that nobody pinned is told as pinned")
	})
}

// private pulls the image that is behind a password, and removes it.
func (t *T) private(auth *cri.AuthConfig, works bool) {
	if t.PrivateImage == "" {
		t.Skipf("no --private-image")
	}
	t.remove(t.PrivateImage)
	_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: t.PrivateImage}, Auth: auth})
	if works {
		t.OK("PullImage", err)
		t.True(t.imageStatus(t.PrivateImage) != nil, "a pulled image has no status")
		t.remove(t.PrivateImage)
		return
	}
	t.True(err != nil, "pulled with %q %q", auth.GetUsername(), auth.GetServerAddress())
	if t.PrivatePassword != "" {
		t.True(!strings.Contains(err.Error(), t.PrivatePassword), "the error tells the password: %v", err)
	}
	t.True(t.imageStatus(t.PrivateImage) == nil, "an image that was refused has a status")
}

const bearer = "the-bearer-token"

// front is a registry that wants a bearer token, over the registry of --image, and its token server.
type front struct {
	image string

	lock sync.Mutex
	// What the token server gives the token for; neither: for nothing.
	refresh, user, password string
	// Requests to the registry with any Authorization, and all such headers.
	headers []string
}

// front serves until the check ends.
func (t *T) front() *front {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	t.OK("listen", err)
	own := listener.Addr().String()
	behind := &url.URL{Scheme: "http", Host: host(t.Image)}
	f := &front{image: own + "/" + strings.SplitN(t.Sibling("private:1"), "/", 2)[1]}
	proxy := &httputil.ReverseProxy{Rewrite: func(request *httputil.ProxyRequest) {
		request.SetURL(behind)
		request.Out.Header.Del("Authorization")
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", f.token)
	mux.HandleFunc("/v2/", func(answer http.ResponseWriter, request *http.Request) {
		given := request.Header.Get("Authorization")
		if given != "" {
			f.lock.Lock()
			f.headers = append(f.headers, given)
			f.lock.Unlock()
		}
		if given != "Bearer "+bearer {
			answer.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="front",scope="repository:suite/private:pull"`, own))
			http.Error(answer, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(answer, request)
	})
	server := &http.Server{Handler: mux}
	go func() {
		// Ends with the check.
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { t.OK("close the front", server.Close()) })
	return f
}

// token is the token server: a refresh token by POST, or a password by Basic, or both by a form.
func (f *front) token(answer http.ResponseWriter, request *http.Request) {
	f.lock.Lock()
	defer f.lock.Unlock()
	user, password, _ := request.BasicAuth()
	if request.FormValue("grant_type") == "password" {
		user, password = request.FormValue("username"), request.FormValue("password")
	}
	right := f.user != "" && user == f.user && password == f.password
	if f.refresh != "" && request.FormValue("refresh_token") == f.refresh {
		right = true
	}
	if !right {
		http.Error(answer, `{"errors":[{"code":"DENIED"}]}`, http.StatusUnauthorized)
		return
	}
	answer.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(answer, `{"token":%q,"access_token":%q,"expires_in":300}`, bearer, bearer)
}

// seen counts requests to the registry that showed the right token.
func (f *front) seen() int {
	f.lock.Lock()
	defer f.lock.Unlock()
	count := 0
	for _, header := range f.headers {
		if header == "Bearer "+bearer {
			count++
		}
	}
	return count
}

// forbid holds that the registry itself never saw a secret that is the token server's.
func (f *front) forbid(t *T, secret string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, header := range f.headers {
		decoded, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(header, "Basic "))
		t.True(!strings.Contains(header+string(decoded), secret), "the registry saw %q", header)
	}
}

func (t *T) tryThrough(f *front, auth *cri.AuthConfig) error {
	t.remove(f.image)
	if auth != nil {
		auth = proto.Clone(auth).(*cri.AuthConfig)
	}
	_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: f.image}, Auth: auth})
	return err
}

func (t *T) pullThrough(f *front, auth *cri.AuthConfig, works bool) {
	err := t.tryThrough(f, auth)
	if !works {
		t.True(err != nil, "pulled with the wrong credentials")
		return
	}
	t.OK("PullImage", err)
	t.True(f.seen() > 0, "no request had the token")
	t.remove(f.image)
}

// host is the registry of a reference.
func host(reference string) string { return reference[:strings.Index(reference, "/")] }

// privateSibling is another image beside one.
func privateSibling(image, name string) string { return image[:strings.LastIndex(image, "/")+1] + name }
