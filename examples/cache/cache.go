package main

import (
	"sync"
	"time"
)

// age bounds how old a price may be on a server that is cut off from the database and
// hears of no change.
const age = time.Minute

// cache keeps prices by their ids.
type cache struct {
	mu      sync.Mutex
	listens bool
	changes uint64
	kept    map[int64]price
}

type price struct {
	cents int64
	until time.Time
}

// open lets prices be kept: from now on their changes are heard of.
func (c *cache) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listens = true
}

func (c *cache) forget(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	delete(c.kept, id)
}

// get is the price that is kept, or else load's. That one is kept unless something
// changed meanwhile: load may have read what was there before.
func (c *cache) get(id int64, load func() (int64, error)) (cents int64, hit bool, err error) {
	c.mu.Lock()
	p, found := c.kept[id]
	changes, listens := c.changes, c.listens
	c.mu.Unlock()
	if found && time.Now().Before(p.until) {
		return p.cents, true, nil
	}
	if cents, err = load(); err != nil {
		return 0, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if listens && c.changes == changes {
		if c.kept == nil {
			c.kept = map[int64]price{}
		}
		c.kept[id] = price{cents, time.Now().Add(age)}
	}
	return cents, false, nil
}
