package mailappliance

import (
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	defaultRetries        = 3
	defaultConnectTimeout = 5 * time.Second
	defaultTimeout        = 30 * time.Second

	maxIdleConns = 100 // as many sends at a time reuse their connections
	idleTimeout  = 90 * time.Second
)

// Option is a setting of a [Client].
type Option func(*settings)

type settings struct {
	username, password, token string
	retries                   int
	connectTimeout, timeout   time.Duration
	transport                 http.RoundTripper
}

// Basic authenticates with an SMTP username and password.
func Basic(username, password string) Option {
	return func(s *settings) { s.username, s.password = username, password }
}

// Token authenticates with an API key or a JWT.
func Token(token string) Option {
	return func(s *settings) { s.token = token }
}

// WithRetries sets how often an attempt is repeated; 3 by default, 0 for
// never.
func WithRetries(n int) Option {
	return func(s *settings) { s.retries = n }
}

// WithConnectTimeout sets the time to make a connection; 5 seconds by default.
// It does not apply to a transport that was given.
func WithConnectTimeout(d time.Duration) Option {
	return func(s *settings) { s.connectTimeout = d }
}

// WithTimeout sets the time for one attempt, from its start until the whole
// answer is read; 30 seconds by default. The context of a call limits all its
// attempts together.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) { s.timeout = d }
}

// WithTransport sets what makes the requests, for tests or for connections of
// another kind. Redirects are not followed and no cookies are kept with any
// transport.
func WithTransport(t http.RoundTripper) Option {
	return func(s *settings) { s.transport = t }
}

// WithHTTPClient shares the transport of an HTTP client, and only that: its
// time-out, cookies and redirects are not used.
func WithHTTPClient(c *http.Client) Option {
	if c.Transport == nil {
		return WithTransport(http.DefaultTransport)
	}
	return WithTransport(c.Transport)
}

// New makes a client of the appliance at baseURL, with one of [Basic] and
// [Token]. What is not given or empty comes from the environment:
// MAIL_APPLIANCE_URL, MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD,
// MAIL_APPLIANCE_TOKEN. Credentials that are given win over all of the
// environment's; in the environment a token wins over a username and password.
// The error is a [*ConfigurationError].
func New(baseURL string, opts ...Option) (*Client, error) {
	s := settings{retries: defaultRetries, connectTimeout: defaultConnectTimeout, timeout: defaultTimeout}
	for _, option := range opts {
		option(&s)
	}
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, err
	}
	authorization, err := s.authorization()
	if err != nil {
		return nil, err
	}
	switch {
	case s.retries < 0:
		return nil, &ConfigurationError{Message: "the number of retries is negative"}
	case s.timeout <= 0 || s.connectTimeout <= 0:
		return nil, &ConfigurationError{Message: "a time-out is not positive"}
	}
	if s.transport == nil {
		s.transport = newTransport(s.connectTimeout)
	}
	return &Client{
		endpoint:      base + "/emails",
		authorization: authorization,
		retries:       s.retries,
		timeout:       s.timeout,
		transport:     s.transport,
		pause:         pause,
		random:        random,
	}, nil
}

func parseBase(given string) (string, error) {
	if given == "" {
		given = os.Getenv("MAIL_APPLIANCE_URL")
	}
	if given == "" {
		return "", &ConfigurationError{Message: "no URL: give one to New or set MAIL_APPLIANCE_URL"}
	}
	u, err := url.Parse(given)
	switch {
	case err != nil: // its text would show a password in the URL
		return "", &ConfigurationError{Message: "the URL cannot be read"}
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return "", &ConfigurationError{Message: "the URL must be http or https, with a host"}
	case u.User != nil, strings.ContainsAny(given, "?#"):
		return "", &ConfigurationError{Message: "the URL must have no user, query or fragment"}
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

func (s *settings) authorization() (string, error) {
	pair := s.username != "" || s.password != ""
	if pair && s.token != "" {
		return "", &ConfigurationError{Message: "both a token and a username and password: give one of Basic and Token"}
	}
	if !pair && s.token == "" {
		s.token = os.Getenv("MAIL_APPLIANCE_TOKEN")
	}
	if s.token != "" {
		if !printable(s.token) || strings.Contains(s.token, " ") {
			return "", &ConfigurationError{Message: "the token has characters that are not allowed"}
		}
		return "Bearer " + s.token, nil
	}
	if s.username == "" {
		s.username = os.Getenv("MAIL_APPLIANCE_USERNAME")
	}
	if s.password == "" {
		s.password = os.Getenv("MAIL_APPLIANCE_PASSWORD")
	}
	switch {
	case s.username == "" && s.password == "":
		return "", &ConfigurationError{Message: "no credentials: give Basic or Token to New, or set " +
			"MAIL_APPLIANCE_TOKEN, or MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD"}
	case s.username == "":
		return "", &ConfigurationError{Message: "no username: give one to Basic or set MAIL_APPLIANCE_USERNAME"}
	case s.password == "":
		return "", &ConfigurationError{Message: "no password: give one to Basic or set MAIL_APPLIANCE_PASSWORD"}
	case strings.Contains(s.username, ":"): // RFC 7617, 2
		return "", &ConfigurationError{Message: "the username has a colon"}
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(s.username+":"+s.password)), nil
}

// newTransport keeps to HTTP/1.1, as net/http does by default with a dialer of
// one's own: the loss of one connection is then the loss of one answer.
func newTransport(connectTimeout time.Duration) http.RoundTripper {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		MaxIdleConns:        maxIdleConns,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // so that maxAnswer limits the bytes on the wire
	}
}
