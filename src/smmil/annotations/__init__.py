"""What experts drew or wrote about a case: lesions as polygons, label images, boxes, points or labels of slices."""
