package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// newClient makes a client that is secured as VDL_TEST_SECURITY says: see security.py beside this.
func newClient(options ...kgo.Opt) (*kgo.Client, error) {
	secured, err := security()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(secured, options...)...)
}

func security() ([]kgo.Opt, error) {
	text := os.Getenv("VDL_TEST_SECURITY")
	if text == "" {
		return nil, nil
	}
	var fields map[string]string
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, err
	}
	var options []kgo.Opt
	if protocol := fields["protocol"]; protocol == "SSL" || protocol == "SASL_SSL" {
		config, err := tlsConfig(fields)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if mechanism := mechanism(fields); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options, nil
}

func tlsConfig(fields map[string]string) (*tls.Config, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if ca := fields["ca"]; ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if certificate := fields["certificate"]; certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, fields["key"])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func mechanism(fields map[string]string) sasl.Mechanism {
	user, password := fields["user"], fields["password"]
	_, isToken := fields["tokenauth"]
	switch fields["mechanism"] {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password, IsToken: isToken}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password, IsToken: isToken}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(fields["token"])
			return oauth.Auth{Token: string(token)}, err
		})
	}
	return nil
}
