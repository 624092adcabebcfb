package artifact

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxResumes is how many times in a row a broken download is resumed without
// receiving any data.
const maxResumes = 5

// get starts a download. It uses the proxies of the environment.
func (d *downloader) get(ctx context.Context) (io.ReadCloser, error) {
	body := &httpBody{d: d, ctx: ctx, client: d.client(), left: maxResumes}
	response, err := body.request()
	if err != nil {
		return nil, cause(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("bad response code: %d", response.StatusCode)
	}
	if limit := d.Limits.HTTPMaxSize; limit > 0 && response.ContentLength > limit {
		response.Body.Close()
		return nil, d.tooLarge()
	}
	body.ReadCloser = response.Body
	if response.Header.Get("Accept-Ranges") == "bytes" {
		body.version = response.Header.Get("Etag")
		if body.version == "" || strings.HasPrefix(body.version, "W/") {
			body.version = response.Header.Get("Last-Modified")
		}
	}
	return body, nil
}

func (d *downloader) client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // the file is stored as the server has it
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: d.Insecure}
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 10 {
				return errors.New("it redirects more than 10 times")
			}
			// Headers for one server must not be sent to another one.
			if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
				for name := range d.Headers {
					r.Header.Del(name)
				}
			}
			return nil
		},
	}
}

// httpBody is the body of one or more responses: when the connection breaks, it
// requests the rest, if the server can identify the version of the file.
type httpBody struct {
	io.ReadCloser
	d       *downloader
	ctx     context.Context
	client  *http.Client
	version string // version of the file from the server; "" if the download cannot be resumed
	got     int64
	left    int
}

func (b *httpBody) request() (*http.Response, error) {
	request, err := http.NewRequestWithContext(b.ctx, http.MethodGet, b.d.url.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, value := range b.d.Headers {
		request.Header.Set(name, value)
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	if b.got > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", b.got))
		request.Header.Set("If-Range", b.version)
	}
	return b.client.Do(request)
}

func (b *httpBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.got, b.left = b.got+int64(n), maxResumes
	}
	if err == nil || err == io.EOF || b.version == "" || b.got == 0 {
		return n, err
	}
	for ; b.left > 0; b.left-- {
		if sleep(b.ctx, time.Second) != nil {
			break
		}
		if b.resume() {
			return n, nil
		}
	}
	return n, err
}

// resume requests the rest of the file, and reports whether the server sends it.
func (b *httpBody) resume() bool {
	response, err := b.request()
	if err != nil {
		return false
	}
	from := fmt.Sprintf("bytes %d-", b.got)
	if response.StatusCode != http.StatusPartialContent || !strings.HasPrefix(response.Header.Get("Content-Range"), from) {
		response.Body.Close()
		b.left = 0 // the file has changed, or the server ignores the range
		return false
	}
	b.ReadCloser.Close()
	b.ReadCloser = response.Body
	b.left--
	return true
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
