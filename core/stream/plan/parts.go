package plan

// RecoverParts cuts a recovery into commands of about itemsMax items, at slot
// boundaries, in the order in which they must be applied; the last one ends the
// log. Each alone leaves a state from which recovery can begin again. Objects
// and items are in slot order, as a recovery finds them.
func RecoverParts(c RecoverWAL, itemsMax int) []RecoverWAL {
	var parts []RecoverWAL
	objects, items := c.Objects, c.Items
	for len(items) > itemsMax {
		n := itemsMax
		for n < len(items) && items[n].Object == items[n-1].Object {
			n++ // a slot is not cut
		}
		if n == len(items) {
			break
		}
		part := c
		part.Part, part.End, part.Items = true, items[n].Object.Seq, items[:n:n]
		k := 0
		for k < len(objects) && objects[k].ID.Seq < part.End {
			k++
		}
		part.Objects = objects[:k:k]
		parts = append(parts, part)
		objects, items, c.From = objects[k:], items[n:], part.End
	}
	c.Objects, c.Items = objects, items
	return append(parts, c)
}
