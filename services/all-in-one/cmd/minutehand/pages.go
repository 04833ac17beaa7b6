package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/minutehand/minutehand/libs/run"
)

const (
	// pageItems is how many items are read at once by what reads all pages.
	pageItems = 500
	// busyTries bounds how often a server that is busy is asked again, busyPause how long it is left alone before that.
	busyTries, busyPause = 5, time.Second
)

// pages calls do with each item of all pages.
func (c *client) pages(ctx context.Context, path string, query url.Values, do func(item map[string]any) error) error {
	query.Set("limit", fmt.Sprint(pageItems))
	for {
		p, err := c.page(ctx, path+"?"+query.Encode())
		if err != nil {
			return err
		}
		for _, item := range p.Items {
			if err := do(item); err != nil {
				return err
			}
		}
		if p.NextCursor == nil {
			return nil
		}
		query.Set("cursor", *p.NextCursor)
	}
}

// page reads a page, and asks a busy server again.
func (c *client) page(ctx context.Context, path string) (p pageAnswer, err error) {
	err = untilFree(ctx, func() error {
		p = pageAnswer{}
		_, err := c.do(ctx, http.MethodGet, path, nil, &p)
		return err
	})
	return p, err
}

// untilFree asks a server again that is busy.
func untilFree(ctx context.Context, ask func() error) error {
	for try := 1; ; try++ {
		err := ask()
		refused := refusal{}
		busy := errors.As(err, &refused) && (refused.code == http.StatusServiceUnavailable || refused.code == http.StatusTooManyRequests)
		if !busy || try == busyTries {
			return err
		}
		if err := run.Sleep(ctx, busyPause); err != nil {
			return err
		}
	}
}
