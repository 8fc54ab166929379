package main

import (
	"sync"
	"time"
)

// age limits how old a price may be on a server that is cut off from the database and
// gets no messages about changes.
const age = time.Minute

// cache keeps prices by their ids.
type cache struct {
	mu      sync.Mutex
	listens bool
	changes uint64 // how many calls of forget there were
	kept    map[int64]price
}

type price struct {
	cents int64
	until time.Time
}

// open starts the caching: from now on this server gets a message about each change.
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

// get returns the cached price, or the one that load returns. It caches the latter unless a
// price changed meanwhile: load may have read the old price.
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
