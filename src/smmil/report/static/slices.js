// The slice of a scan under the hand, cut from the picture that holds all of them.
class SliceView {
  constructor(host, number) {
    const [across, width, height, count] = DATA.cases[number].slices;
    Object.assign(this, { across, width, height, count });
    this.canvas = make("canvas", "slice");
    this.canvas.setAttribute("role", "img");
    this.caption = make("figcaption", "");
    this.figure = make("figure", "slice-view");
    this.figure.append(this.canvas, this.caption);
    host.append(this.figure);
    this.image = new Image();
    this.ready = new Promise((done) => {
      this.image.addEventListener("load", done);
      this.image.addEventListener("error", done);
    });
    this.image.src = pictureOf(number);
  }

  show(slice, words) {
    if (slice < 0 || slice >= this.count) return;
    this.slice = slice;
    this.canvas.width = this.width;
    this.canvas.height = this.height;
    const [column, row] = [slice % this.across, Math.floor(slice / this.across)];
    const from = [column * this.width, row * this.height, this.width, this.height];
    this.canvas.getContext("2d").drawImage(this.image, ...from, 0, 0, this.width, this.height);
    this.canvas.dataset.slice = slice;
    this.canvas.setAttribute("aria-label", words);
    this.caption.textContent = words;
  }
}
