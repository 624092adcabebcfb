package artifact

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// get begins a download. The proxies of the environment are used.
func (d *downloader) get(ctx context.Context) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url.String(), nil)
	if err != nil {
		return nil, unwrapURL(err)
	}
	for name, value := range d.Headers {
		request.Header.Set(name, value)
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // what lies there is what is wanted
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: d.Insecure}
	client := &http.Client{
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 10 {
				return errors.New("it redirects more than 10 times")
			}
			// What the job tells one server is none of another's business.
			if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
				for name := range d.Headers {
					r.Header.Del(name)
				}
			}
			return nil
		},
	}
	response, err := client.Do(request)
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
	return response.Body, nil
}
