package config

import "testing"

func TestServerHTTPAddr(t *testing.T) {
	for text, valid := range map[string]bool{
		"https://nomad.example.com:4646": true, "http://10.0.0.1": true, "https://[::1]:4646/prefix": true,
		"nomad.example.com:4646": false, "10.0.0.1": false, "unix:///x": false, "https://": false, "https://user@host": false, "": false,
	} {
		if err := checkServerURL(text); (err == nil) != valid {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if (&Cluster{}).ServerURL() != nil {
		t.Error("an empty address has a URL")
	}
	if u := (&Cluster{ServerHTTPAddr: "https://nomad.example.com:4646"}).ServerURL(); u == nil || u.Host != "nomad.example.com:4646" {
		t.Errorf("got %v", u)
	}
}
