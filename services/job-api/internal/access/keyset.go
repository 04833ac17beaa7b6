package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// readEvery is the pause between two readings of the keys, and so how long a key that was taken away is still accepted.
	readEvery = time.Minute
	// readAgain is the least pause before a token with an unknown key lets the keys be read out of turn.
	readAgain = 10 * time.Second
	// readLimit bounds one reading.
	readLimit = 10 * time.Second
	// keptFor is how long the last reading stands while there is no newer one.
	keptFor = 24 * time.Hour
	// maxKeySet and maxKeys bound a key set, in bytes and in keys.
	maxKeySet, maxKeys = 1 << 20, 100
	// leastRSA is the least number of bits of an RSA key, by RFC 7518, section 3.3.
	leastRSA = 2048
)

// ErrNoKeys means that the key set could not be read, or not for a long time.
var ErrNoKeys = errors.New("the keys that verify tokens cannot be read")

// verifier is a public key with the one algorithm that it is used with.
type verifier struct {
	method jwt.SigningMethod
	key    any
}

// keySet is the JSON Web Key Set of an identity provider.
type keySet struct {
	// source is a file or an https URL.
	source string
	client *http.Client
	clock  clock.Clock
	logger *slog.Logger

	mu     sync.Mutex
	byID   map[string]verifier
	readAt time.Time
	// triedAt is when the last reading began; reading is set while one is under way.
	triedAt time.Time
	reading bool
	// generation changes with every reading that found other keys.
	generation int
	text       string
}

func newKeySet(source string, c clock.Clock, logger *slog.Logger) *keySet {
	return &keySet{source: source, clock: c, logger: logger, client: &http.Client{
		Timeout: readLimit,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if r.URL.Scheme != "https" {
				return errors.New("led away from https")
			}
			return nil
		},
	}}
}

// run reads the keys again and again until ctx ends.
func (s *keySet) run(ctx context.Context) {
	for run.Sleep(ctx, readEvery) == nil {
		s.refresh(ctx)
	}
}

// refresh reads the keys, unless another goroutine does.
func (s *keySet) refresh(ctx context.Context) {
	s.mu.Lock()
	if s.reading {
		s.mu.Unlock()
		return
	}
	s.reading, s.triedAt = true, s.clock.Now()
	s.mu.Unlock()
	text, err := s.read(ctx)
	var keys map[string]verifier
	if err == nil {
		keys, err = parseKeys(text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading = false
	if err != nil {
		s.logger.Warn("the keys that verify tokens cannot be read, those that were read before stand", "error", err)
		return
	}
	s.byID, s.readAt = keys, s.clock.Now()
	if s.text != string(text) {
		s.generation, s.text = s.generation+1, string(text)
	}
}

func (s *keySet) read(ctx context.Context) ([]byte, error) {
	if !strings.Contains(s.source, "://") {
		f, err := os.Open(s.source)
		if err != nil {
			return nil, err
		}
		text, err := limited(f)
		return text, errors.Join(err, f.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.source, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", s.source, resp.Status)
	}
	return limited(resp.Body)
}

func limited(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxKeySet+1))
	if err == nil && len(text) > maxKeySet {
		err = fmt.Errorf("the key set has more than %d bytes", maxKeySet)
	}
	return text, err
}

// parseKeys returns the keys of a set that verify signatures, by their ids. Others are left out: a set may also have keys for
// encryption, or of kinds that are not used here.
func parseKeys(text []byte) (map[string]verifier, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has more than %d keys", maxKeys)
	}
	keys := map[string]verifier{}
	for _, m := range set.Keys {
		m.X5U = "" // never followed
		key, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil || m.USE != "" && m.USE != jwkset.UseSig {
			continue
		}
		v, ok := verifierOf(key.Key())
		if !ok || m.ALG != "" && m.ALG.String() != v.method.Alg() {
			continue
		}
		if _, twice := keys[m.KID]; twice {
			return nil, errors.New("two keys of the set have one id")
		}
		keys[m.KID] = v
	}
	if len(keys) == 0 {
		return nil, errors.New("the set has no key for RS256, ES256 or EdDSA")
	}
	return keys, nil
}

// verifierOf returns a public key with its algorithm.
func verifierOf(key any) (verifier, bool) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return verifier{jwt.SigningMethodRS256, k}, k.N.BitLen() >= leastRSA
	case *ecdsa.PublicKey:
		return verifier{jwt.SigningMethodES256, k}, k.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return verifier{jwt.SigningMethodEdDSA, k}, true
	}
	return verifier{}, false
}

// find returns the key with an id. If there is none, the keys are read again first, unless that was done a moment ago: tokens with
// made-up ids cost nothing more.
func (s *keySet) find(ctx context.Context, id string) (v verifier, generation int, err error) {
	for range 2 {
		s.mu.Lock()
		v, ok := s.byID[id]
		now := s.clock.Now()
		generation, triedAt, stale := s.generation, s.triedAt, s.byID == nil || now.Sub(s.readAt) > keptFor
		s.mu.Unlock()
		if ok && !stale {
			return v, generation, nil
		}
		if now.Sub(triedAt) < readAgain && !triedAt.IsZero() {
			if stale {
				return verifier{}, 0, ErrNoKeys
			}
			return verifier{}, 0, errRefused
		}
		s.refresh(ctx)
	}
	return verifier{}, 0, errRefused
}

// now returns the generation of the keys; ok is false if they are too old.
func (s *keySet) now() (generation int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation, s.byID != nil && s.clock.Since(s.readAt) <= keptFor
}
